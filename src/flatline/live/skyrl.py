"""`trainer.add_callback(flatline.skyrl.Recording("runs/x"))`: records a run of SkyRL's trainer.

SkyRL hands its callbacks the batch that a step trained on, after it: ids, masks, the sampler's and
the policy's log-probs and advantages. It takes each row's reward out before; the mean of a step is
among its metrics. Responses end at the last column; prompts stand in front of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatline.live.batch import EQUAL
from flatline.live.hooks import Guard
from flatline.live.texts import Texts, hashed
from flatline.rollout.record import Author
from flatline.trace.importers.settings import settings_of
from flatline.trace.recorder import Recorder

REWARD = "reward/avg_raw_reward"
LOGPROBS = {
    "sampler": "rollout_logprobs",
    "trainer": "action_log_probs",
    "old": "action_log_probs",
    "reference": "base_action_log_probs",
}
"""Columns of a trace -> tensors of a batch."""


class Recording:
    """A `TrainingCallback` of SkyRL; what goes wrong in it never reaches the training."""

    def __init__(self, run_dir: str | Path) -> None:
        self._run_dir = run_dir
        self._recorder: Recorder | None = None
        self._guard = Guard()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Events that tell nothing."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: None

    def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """One step, trained."""
        self._guard(self._step, trainer, callback_input)

    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """The run is over."""
        if self._recorder is not None:
            self._guard(self._recorder.close)

    def _step(self, trainer: Any, told: Any) -> None:
        if self._recorder is None:
            config = asdict(trainer.cfg) if is_dataclass(trainer.cfg) else dict(trainer.cfg)  # type: ignore[arg-type]
            known = {name: one for name, one in settings_of(config).items() if one is not None}
            self._recorder = Recorder(self._run_dir, settings=known, source="skyrl")
        rows = [_Row(told.batch, at) for at in range(_count(told.batch))]
        texts = Texts(trainer.tokenizer)
        texts.learn(ids for row in rows for ids in (row.prompt, row.ids))
        end = getattr(trainer.tokenizer, "eos_token_id", None)
        groups = _groups(told.batch.metadata, len(rows))
        place = [{"step": told.global_step, "rollout": at} for at in range(len(rows))]
        pairs = list(zip(place, rows, strict=True))
        self._recorder.log_rollouts(
            {**at, "group": group, **row.rollout(texts, end)}
            for (at, row), group in zip(pairs, groups, strict=True)
        )
        self._recorder.log_tokens({**at, **row.tokens()} for at, row in pairs)
        metrics = _numbers({**getattr(trainer, "all_metrics", {}), **(told.metrics or {})})
        known = {"reward": metrics[REWARD]} if REWARD in metrics else {}
        self._recorder.log_step(step=told.global_step, metrics=metrics, **known)


class _Row:
    """One row of a batch."""

    def __init__(self, batch: Mapping[str, Any], at: int) -> None:
        def values(name: str) -> np.ndarray | None:
            found = batch.get(name)
            return None if found is None else found[at].detach().float().cpu().numpy()

        mask, ids, seen = (values(n) for n in ("response_mask", "sequences", "attention_mask"))
        assert mask is not None and ids is not None and seen is not None
        size, ids = int(mask.sum()), ids.astype(np.int32)
        self.prompt = ids[int(seen.argmax()) : len(ids) - size]
        self.ids = ids[len(ids) - size :]
        ends = {name: values(tensor) for name, tensor in LOGPROBS.items()}
        self.logps = {k: v[len(v) - size :] for k, v in ends.items() if v is not None}
        loss, advantage = values("loss_mask"), values("advantages")
        assert loss is not None and advantage is not None
        self.trained = loss[len(loss) - size :] != 0
        self.advantage = advantage[len(advantage) - size :]

    def rollout(self, texts: Texts, end: int | None) -> dict[str, Any]:
        known = self.advantage[self.trained]
        return {
            "prompt_id": hashed(self.prompt),
            "advantage": float(known.mean()) if len(known) and np.ptp(known) <= EQUAL else None,
            "finish": None if end is None else "eos" if self.ids[-1] == end else "length",
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.ids),
            "trained_tokens": int(self.trained.sum()),
            "prompt": texts.of(self.prompt),
            "completion": texts.of(self.ids),
        }

    def tokens(self) -> dict[str, Any]:
        """SkyRL gives what was not sampled a log-prob of exactly 0; without any, who wrote a token
        is known from the mask alone."""
        sampled = self.logps.get("sampler", np.zeros(len(self.ids))) != 0
        own = self.trained | sampled
        author = np.where(own, Author.MODEL, Author.TOOL).astype(np.uint8)
        trained = self.trained.astype(np.uint8)
        columns = {"prompt_ids": self.prompt, "ids": self.ids, "author": author, "trained": trained}
        return {**columns, **self.logps}


def _count(batch: Any) -> int:
    """Rows without those that fill the last pass."""
    return len(batch["sequences"]) - int(batch.metadata.get("pad_size", 0))


def _groups(metadata: Mapping[str, Any], rows: int) -> Sequence[int | None]:
    """Rows of one prompt; unknown where the batch does not say."""
    groups: list[int | None] = [None] * rows
    for number, (first, last) in enumerate(metadata.get("policy_prompt_boundaries") or ()):
        groups[first:last] = [number] * (min(last, rows) - first)
    return groups


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(one) for name, one in metrics.items() if isinstance(one, int | float)}
