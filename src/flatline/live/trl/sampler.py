"""What transformers' `generate` samples, and how likely each token was when it was drawn.

TRL asks `generate` for ids alone. An ear at the end of the logits processors sees the very scores
that are drawn from, after temperature, top-k, top-p and penalties, so a log-prob means what it does
for our own engine and for vLLM's `processed_logprobs`. It reads them when the next call shows what
was drawn, and never keeps more than one position's. Beams, greedy search and the like draw from no
such distribution: nothing is said of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flatline.live.batch import Drawn
from flatline.live.hooks import Guard, Patch, listening, without_adapter
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.settings import TRANSFORMERS, engine_of

SAMPLE = "sample"
"""How transformers calls drawing one token after another from a distribution."""


class Call(NamedTuple):
    """One call of `generate`, one row per sequence."""

    context_ids_BL: Tensor
    context_mask_BL: Tensor
    sampled_ids_BT: Tensor
    """Rows that ended earlier are filled up."""
    logps_BT: Tensor
    ends_E: Tensor
    """Ids that end a sequence."""


@contextmanager
def hearing(trainer: GrpoTrainer, guard: Guard) -> Iterator[list[Call | None]]:
    """Inside, every call of `generate` on the model that is trained is heard; None stands for one
    whose log-probs cannot be told. Other samplers say for themselves what they drew."""
    calls: list[Call | None] = []
    model: Any = _sampled_from(trainer)
    if model is None:
        yield calls
        return
    under_way: list[list[_Ear]] = []
    """One list for each call: continuous batching asks for processors outside of any."""

    def listen(args: Any, kwargs: dict[str, Any], processors: Any, _: float) -> None:
        if under_way:
            ear = _Ear(kwargs.get("generation_config", args[0] if args else None), guard)
            under_way[-1].append(ear)
            processors.append(ear)

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        under_way.append([])
        try:
            found = original(*args, **kwargs)
        finally:
            ears = under_way.pop()
        guard(lambda: calls.append(_call(ears, args, kwargs, found)))
        return found

    with (
        listening(model, "_get_logits_processor", listen, guard),
        Patch(model, "generate", generate),
    ):
        yield calls


def drawn(calls: Sequence[Call | None], completions: Sequence[np.ndarray]) -> list[Drawn]:
    """What was drawn for each of these rows; empty where that cannot be told.

    The first call is for all rows in their order, later ones for those of them that go on, as in
    TRL's tool loop. Rows that began alike cannot be told apart: turns that do not fit what is
    trained may be another row's, and nothing is said then.
    """
    known = [call for call in calls if call is not None]
    rows = len(completions)
    if not known or len(known) < len(calls) or len(known[0].sampled_ids_BT) != rows:
        return []
    found = [Drawn(*row) for row in _rows(known[0])]
    for call in known[1:]:
        waiting = iter(found)
        for context, ids, logps in _rows(call):
            one = next((one for one in waiting if one.goes_on_in(context)), None)
            if one is None:
                return []
            one.go_on(context, ids, logps)
    pairs = zip(found, completions, strict=True)
    fits = all(one.ids_beside(ids) is ids for one, ids in pairs)
    return found if fits or len(known) == 1 else []


class _Ear:
    """The last of the logits processors. It changes nothing."""

    def __init__(self, config: Any, guard: Guard) -> None:
        mode = getattr(config.get_generation_mode(), "value", None)
        self.samples = mode == SAMPLE
        ends = config.eos_token_id
        self.ends = [] if ends is None else torch.as_tensor(ends).flatten().tolist()
        self._guard = guard
        self._scores_BV: Tensor | None = None
        """What the next token is drawn from."""
        self._logps: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.samples:
            self._guard(self._hear, input_ids, scores)
        return scores

    def _hear(self, ids_BL: Tensor, scores_BV: Tensor) -> None:
        self._settle(ids_BL[:, -1])
        self._scores_BV = scores_BV

    def _settle(self, drawn_B: Tensor) -> None:
        if self._scores_BV is not None:
            logps_BV, self._scores_BV = self._scores_BV.float().log_softmax(-1), None
            self._logps.append(logps_BV.gather(1, drawn_B[:, None])[:, 0])

    def logps(self, sampled_BT: Tensor) -> Tensor | None:
        """Of what came of it. On a GPU a position more may have been computed than is kept."""
        tokens = sampled_BT.shape[1]
        if len(self._logps) < tokens:
            self._settle(sampled_BT[:, -1])
        if not tokens or len(self._logps) < tokens:
            return None
        return torch.stack(self._logps[:tokens], dim=1)


def _call(ears: list[_Ear], args: Any, kwargs: dict[str, Any], found: Any) -> Call | None:
    context_BL = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
    if len(ears) != 1 or not ears[0].samples:
        return None
    if not isinstance(context_BL, Tensor) or not isinstance(found, Tensor):
        return None
    if len(found) != len(context_BL):
        return None
    sampled_BT = found[:, context_BL.shape[1] :]
    logps_BT = ears[0].logps(sampled_BT)
    if logps_BT is None or logps_BT.shape != sampled_BT.shape:
        return None
    mask_BL = kwargs.get("attention_mask")
    mask_BL = torch.ones_like(context_BL) if mask_BL is None else mask_BL
    ends_E = torch.tensor(ears[0].ends, dtype=torch.long)
    return Call(context_BL, mask_BL, sampled_BT, logps_BT, ends_E)


def _sampled_from(trainer: GrpoTrainer) -> nn.Module | None:
    """The model whose `generate` TRL calls, without the shells of adapter and compiler."""
    if engine_of(trainer) != TRANSFORMERS:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = without_adapter(getattr(model, "_orig_mod", model))
    return model if callable(getattr(model, "_get_logits_processor", None)) else None


def _rows(call: Call) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Context, ids and log-probs of each row, without what fills it up."""
    ids_BL, mask_BL, sampled_BT, logps_BT, ends_E = (part.cpu().numpy() for part in call)
    is_end_BT = np.isin(sampled_BT, ends_E)
    length_B = np.where(is_end_BT.any(1), is_end_BT.argmax(1) + 1, sampled_BT.shape[1])
    logps_BT = np.where(np.isfinite(logps_BT), logps_BT, np.nan).astype(np.float32)
    for row, length in enumerate(length_B):
        context = ids_BL[row][mask_BL[row] != 0]
        yield context, sampled_BT[row, :length], logps_BT[row, :length]
