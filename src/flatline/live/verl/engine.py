"""`flatline.verl.Engine`: what a checkup needs of one of verl's training engines.

    checkup(Engine(worker=worker, config=config, tokenizer=tokenizer,
                   prompts=prompts, play=play, send=send))

`worker` is verl's `TrainingWorker`, with its engine built and its loss set. What samples is another
process, so it is asked through two functions of verl's own words: `play` gives an
`AgentLoopOutput` for each rollout, `send` does what `checkpoint_manager.update_weights` does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from flatline.live.held import give_gradients, gradient_copies
from flatline.live.hooks import Guard
from flatline.live.inputs import Inputs
from flatline.live.measure.played import Played, Recorded
from flatline.live.measure.step import Backward, census_of
from flatline.live.protocol import PLAYS_AND_STEPS, Capability, Trainer
from flatline.live.restore.calls import Calls
from flatline.live.restore.snapshot import Snapshot
from flatline.live.verl import batches
from flatline.live.verl.rows import Rollout, join, placed
from flatline.live.verl.settings import settings
from flatline.live.verl.steps import measured
from flatline.live.verl.worker import WorkerEar, completions
from flatline.trace.writer import MemorySink

PROMPT = "verl_prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One of verl's engines in the words of a checkup."""

    worker: Any
    """verl's `TrainingWorker`: its `engine` is built, its `loss_fn` set."""
    config: Mapping[str, Any]
    """The whole configuration, resolved, as `main_ppo` has it."""
    tokenizer: Any
    prompts: Sequence[Any]
    """What one step samples for, as `play` takes it."""
    play: Callable[[Sequence[Any]], Sequence[Any]]
    """Some prompts -> an `AgentLoopOutput` for each rollout, those of a prompt together; with
    `reward_score`."""
    send: Callable[[int], object]
    """Sends the engine's weights to what samples, as those of a step."""
    reference: Any = None
    """verl's `TrainingWorker` of the reference, where the loss has a KL term."""


class EngineTrainer(Trainer):
    """verl's own `infer_batch` and `train_batch`, called one at a time."""

    how: ClassVar = {
        Capability.REFERENCE: "Give the reference's `TrainingWorker`: `Engine(reference=...)`",
        Capability.PASSES: (
            "Give the worker verl's own loss: `set_loss_fn(partial(ppo_loss, config=actor))`; the "
            "weight of another one's KL cannot be changed"
        ),
        Capability.DATA_ORDER: (
            "verl's trainer keeps the data in another process: record a run with "
            "`VERL_USE_EXTERNAL_MODULES=flatline.verl`"
        ),
        Capability.SPECIFICATION: "The specified step is known for TRL's trainers and for a Loop",
    }

    def __init__(self, given: Engine, correct: str | None = None) -> None:
        self._given, self._engine = given, given.worker.engine
        self._settings = {**settings(given.config), "correct": correct}
        self._step = 0

    @property
    def can(self) -> frozenset[Capability]:
        known = {
            Capability.REFERENCE: self.beta == 0 or self._given.reference is not None,
            Capability.PASSES: batches.has_beta(self._given.worker.loss_fn),
        }
        return PLAYS_AND_STEPS | {capability for capability, there in known.items() if there}

    @property
    def model(self) -> nn.Module:
        module: nn.Module = self._engine.module
        return module

    @property
    def tokenizer(self) -> Any:
        return self._given.tokenizer

    @property
    def group(self) -> int:
        return int(self._settings["num_generations"])

    @property
    def size(self) -> int:
        return int(self._engine.engine_config.micro_batch_size_per_gpu)

    @property
    def beta(self) -> float:
        return float(self._settings["beta"] or 0.0)

    @property
    def temperature(self) -> float:
        return float(self._settings["temperature"])

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    @property
    def planned_steps(self) -> int | None:
        steps = self._settings["max_steps"]
        return None if steps is None else int(steps)

    @property
    def keeps_reference(self) -> bool:
        return self._given.reference is not None

    def snapshot(self) -> Snapshot:
        engine, worker = self._engine, self._given.worker
        return Snapshot(
            models=[self.model],
            optimizer=engine.optimizer,
            users={"your `play`": self._given.play, "your `send`": self._given.send},
            machinery={"verl's engine": engine, "verl's worker": worker},
        )

    @contextmanager
    def counting(self, calls: Calls) -> Iterator[None]:
        given = self._given
        self._given = replace(given, play=calls.of("play", given.play))
        try:
            yield
        finally:
            self._given = given

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """What samples has the engine's weights again at the end."""
        try:
            yield
        finally:
            self._given.send(0)

    def record(self) -> Recorded:
        """One step of verl's own, listened to as in training."""
        played = self._played(self._given.prompts)
        old_BT = self.plain_logps(played.inputs)
        ear = WorkerEar(SimpleNamespace(actor=self._given.worker), Guard())
        try:
            with self._engine.train_mode():
                self._engine.train_batch(self._data(played.inputs), self._given.worker.loss_fn)
        finally:
            for patch in ear.patches:
                patch.undo()
        rollouts = [Rollout(row["fields"], {}) for row in played.rows]
        heard = ear.heard()
        join(rollouts, heard["rows"])
        return Recorded(played, old_BT, self._trace(rollouts, heard["weights"]), {})

    def play(self, rows: Sequence[Mapping[str, Any]], step: int) -> Played:
        self._step = step
        return self._played([row[PROMPT] for row in rows[:: self.group]])

    def logps(self, inputs: Inputs, size: int | None = None) -> Tensor:
        return self.plain_logps(inputs)

    def plain_logps(self, inputs: Inputs) -> Tensor:
        return self._scored(self._engine, inputs)

    def reference_logps(self, played: Played) -> Tensor:
        return self._scored(self._given.reference.engine, played.inputs)

    def backward(
        self, played: Played, *, size: int | None = None, beta: float | None = None
    ) -> Backward:
        data, loss_fn = self._data(played.inputs, size), self._given.worker.loss_fn
        if beta is not None:
            loss_fn = batches.with_beta(loss_fn, beta)
        self._engine.optimizer_zero_grad()
        with self._engine.train_mode(zero_grad_on_exit=False):
            found = self._engine.forward_backward_batch(data, loss_fn, forward_only=False)
        census = census_of(self.model, self._engine.optimizer, self._settings["max_grad_norm"])
        rows = list(range(len(played.rows)))
        return Backward(gradient_copies(self.model), census, float(sum(found["loss"])), rows)

    def take_step(self, back: Backward, scale: float) -> float:
        """verl clips where it steps."""
        give_gradients(self.model, back.gradients)
        groups = self._engine.optimizer.param_groups
        rate = float(self._settings["learning_rate"]) * scale
        for group in groups:
            group["lr"] = rate
        self._engine.optimizer_step()
        return rate

    # -- in verl's words

    def _played(self, prompts: Sequence[Any]) -> Played:
        self._given.send(self._step)
        outputs = list(self._given.play(prompts))
        uids = [str(at // self.group) for at in range(len(outputs))]
        fields = [batches.fields_of(one, uid) for one, uid in zip(outputs, uids, strict=True)]
        found = [Rollout(row, {}) for row in fields]
        inputs = _inputs(found, self.tokenizer.pad_token_id or 0)
        inputs["group"] = torch.arange(len(found)) // self.group
        inputs["advantages"] = batches.advantages(inputs, fields, self._given.config)
        if self.keeps_reference:
            inputs["ref_per_token_logps"] = self._scored(self._given.reference.engine, inputs)
        self._complete(fields, found, inputs)
        places = [prompt for prompt in prompts for _ in range(self.group)]
        pairs = zip(places, fields, strict=True)
        return Played([{PROMPT: prompt, "fields": row} for prompt, row in pairs], inputs)

    def _complete(self, fields: Any, found: Sequence[Rollout], inputs: Inputs) -> None:
        """Fields of the rollouts that are known once all of them are."""
        logps_BT = self.plain_logps(inputs)
        for at, (row, one) in enumerate(zip(fields, found, strict=True)):
            length = len(one.ids)
            row["advantages"] = np.full(length, float(inputs["advantages"][at]))
            row["old_log_probs"] = logps_BT[at, :length].numpy()
            if self.keeps_reference:
                row["ref_log_prob"] = inputs["ref_per_token_logps"][at, :length].numpy()

    def _scored(self, engine: Any, inputs: Inputs) -> Tensor:
        data = batches.tensordict(inputs, self._config(), compute_loss=False)
        with engine.eval_mode():
            output = engine.infer_batch(data)
        rows = completions(output["model_output"]["log_probs"].values(), data)
        found = torch.zeros(inputs["completion_ids"].shape)
        for row, kept, logps in zip(found, inputs["completion_mask"].bool(), rows, strict=True):
            row[kept] = logps.float().cpu()
        return found

    def _data(self, inputs: Inputs, size: int | None = None) -> Any:
        """A batch as an update gets it: old log-probs are those of the weights as they are."""
        return batches.tensordict(inputs, self._config(size), old=self.plain_logps(inputs))

    def _config(self, size: int | None = None) -> Mapping[str, Any]:
        return {"temperature": self.temperature, "size": size or self.size}

    def _trace(self, rollouts: Sequence[Rollout], weights: Sequence[Mapping[str, Any]]) -> Any:
        sink = MemorySink(run={"source": "verl", "settings": dict(self._settings)})
        ends = frozenset({self.tokenizer.eos_token_id} - {None})
        longest = self._settings["max_completion_length"] or 0
        pairs = placed(rollouts, 1)
        rows = [one.rollout_row(place, ends, longest) for place, one in pairs]
        for row, (_, one) in zip(rows, pairs, strict=True):
            row |= {
                "prompt": self.tokenizer.decode(one.prompt),
                "completion": self.tokenizer.decode(one.ids),
            }
        sink.write("rollouts", rows)
        sink.write("tokens", [one.token_row(place) for place, one in pairs])
        sink.write("weights", [{**row, "step": 1} for row in weights])
        sink.write("steps", [{"step": 1, **measured(rollouts, rows)}])
        return sink.trace()


def _inputs(rollouts: Sequence[Rollout], pad: int) -> Inputs:
    """By TRL's names: prompts end, and completions begin, at one token."""
    authors = [one.author if one.author is not None else one.mask for one in rollouts]
    sampler = [one.sampler for one in rollouts]
    known = [one for one in sampler if one is not None]
    found = {
        "prompt_ids": _left([one.prompt for one in rollouts], pad),
        "prompt_mask": _left([np.ones(len(one.prompt), np.int64) for one in rollouts], 0),
        "completion_ids": _right([one.ids for one in rollouts], pad),
        "completion_mask": _right([np.ones(len(one.ids), np.int64) for one in rollouts], 0),
        "tool_mask": _right([one.mask for one in rollouts], 0),
        "authors": _right(authors, 0),
    }
    if len(known) == len(rollouts):
        found["sampling_per_token_logps"] = _right(known, float("nan")).float()
    return found


def _right(rows: Sequence[np.ndarray], fill: float) -> Tensor:
    tensors = [torch.from_numpy(np.asarray(row)) for row in rows]
    wide = [t.long() if not t.is_floating_point() else t for t in tensors]
    return pad_sequence(wide, batch_first=True, padding_value=fill)


def _left(rows: Sequence[np.ndarray], fill: float) -> Tensor:
    return _right([row[::-1].copy() for row in rows], fill).flip(1)


def hold(trainer: Any, correct: str | None) -> Trainer | None:
    """What a checkup holds of an `Engine`."""
    return EngineTrainer(trainer, correct) if isinstance(trainer, Engine) else None
