"""What transformers' `generate`, or vLLM in this process, samples, and the log-prob of each token.

TRL asks `generate` for ids alone. An ear at the end of the logits processors sees the very scores
that are drawn from, after temperature, top-k, top-p and penalties, so a log-prob means what it does
for our own engine and for vLLM's `processed_logprobs`. It reads them when the next call shows what
was drawn, and never keeps more than one position's. Beams, greedy search and the like draw from no
such distribution: nothing is said of them.

vLLM says itself which ids it read and drew, and log-probs where it was asked for them, which are
taken as they are.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from flatline.live.batch import Drawn
from flatline.live.hooks import Guard, Patch, listening, without_adapter
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.settings import TRANSFORMERS, engine_of

KEEPS = {
    "top_k": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "min_new_tokens": (0,),
    "min_length": (0,),
    "temperature": (),
}
"""What bends the distribution that `generate` draws from, and where it leaves it as it is. What a
temperature ought to be is the user's to say."""
SAMPLE = "sample"
"""How transformers calls drawing one token after another from a distribution."""


class Call(NamedTuple):
    """One call of the sampler, one row per sequence."""

    context_ids_BL: Tensor
    context_mask_BL: Tensor
    sampled_ids_BT: Tensor
    sampled_mask_BT: Tensor
    """Rows that ended earlier are filled up."""
    logps_BT: Tensor
    """NaN where the sampler gave none."""


class Calls(list[Call | None]):
    """What was heard; None stands for a call that is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.bending: dict[str, float] = {}
        """Parameters that bend what is drawn from, with their values."""
        self.unasked: list[str] = []
        """Those of them that nobody asked for."""
        self.bent: list[float] = []
        """By how many nats the processors change each drawn token, where there are such."""


@contextmanager
def hearing(trainer: GrpoTrainer, guard: Guard) -> Iterator[Calls]:
    """Inside, every call of `generate`, on the model that is trained or on vLLM's engine beside it,
    is heard. Other samplers say for themselves what they drew."""
    calls = Calls()
    model: Any = _sampled_from(trainer)
    engine = engine_beside(trainer)
    if engine is not None:
        with listening(engine, "generate", lambda *heard: calls.append(_told(*heard[:3])), guard):
            yield calls
        return
    if model is None:
        yield calls
        return
    under_way: list[list[_Ear]] = []
    """One list for each call: continuous batching asks for processors outside of any."""

    def listen(args: Any, kwargs: dict[str, Any], processors: Any, _: float) -> None:
        if under_way:
            config = kwargs.get("generation_config", args[0] if args else None)
            ear = _Ear(config, guard)
            under_way[-1].append(ear)
            processors.append(ear)
            calls.bending, calls.unasked = _bending(config, trainer.args)
            if calls.bending and not calls:  # the first call tells: it has the weights of the start
                processors.insert(0, _Before(ear, trainer.args.temperature, guard))

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        under_way.append([])
        try:
            found = original(*args, **kwargs)
        finally:
            ears = under_way.pop()
        guard(lambda: calls.append(_call(ears, args, kwargs, found)))
        guard(lambda: calls.bent.extend(_bent(ears, calls[-1])))
        return found

    with (
        listening(model, "_get_logits_processor", listen, guard),
        Patch(model, "generate", generate),
    ):
        yield calls


def _bending(config: Any, args: Any) -> tuple[dict[str, float], list[str]]:
    """Of the configuration that is in force, whoever filled it in; and what nobody asked for."""
    given = getattr(args, "generation_kwargs", None) or {}
    in_force = {name: getattr(config, name, None) for name in KEEPS}
    asked = {name: given.get(name, getattr(args, name, None)) for name in KEEPS}
    bends = {
        name: float(value)
        for name, value in in_force.items()
        if value is not None and value not in KEEPS[name]
    }
    if bends.get("temperature") == args.temperature:
        del bends["temperature"]
    if "min_new_tokens" in bends:  # transformers makes a `min_length` of it
        bends.pop("min_length", None)
    return bends, [name for name in bends if in_force[name] != asked[name]]


def drawn(calls: Sequence[Call | None], completions: Sequence[np.ndarray]) -> list[Drawn]:
    """What was drawn for each of these rows; empty where that cannot be determined.

    The first call is for all rows in their order, later ones for those of them that go on, as in
    TRL's tool loop. Rows that began alike cannot be told apart: turns that do not fit what is
    trained may be another row's, and nothing is said then. Where the next turn was asked for with
    other ids than were drawn, and those are trained, what was drawn before it is all that is told.
    """
    known = [call for call in calls if call is not None]
    rows = len(completions)
    if not known or len(known) < len(calls) or len(known[0].sampled_ids_BT) != rows:
        return []
    found = [Drawn(*row) for row in _rows(known[0])]
    encoded_again = [False] * rows
    for call in known[1:]:
        waiting = iter(range(rows))
        for context, ids, logps in _rows(call):
            row = next((k for k in waiting if _follows(found[k], completions[k], context)), None)
            if row is None:
                return []
            encoded_again[row] |= not found[row].goes_on_in(context)
            if not encoded_again[row]:
                found[row].go_on(context, ids, logps)
    each = zip(found, completions, encoded_again, strict=True)
    fits = all(again or one.ids_beside(ids) is ids for one, ids, again in each)
    return found if fits or len(known) == 1 else []


def _follows(one: Drawn, trained: np.ndarray, context: np.ndarray) -> bool:
    """Whether a turn that was asked for with this context is the row's: it goes on from what was
    drawn, or it is what is trained."""
    start = len(one.prompt_ids)
    if one.goes_on_in(context):
        return True
    begun = context[start:]
    same_prompt = np.array_equal(context[:start], one.prompt_ids)
    return same_prompt and len(begun) > 0 and np.array_equal(trained[: len(begun)], begun)


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
        self._heard_BV: Tensor | None = None
        self._logps: list[Tensor] = []
        self.before_BV: Tensor | None = None
        """The same before any processor, at the temperature asked for; None where nobody asks."""
        self.bent: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.samples:
            self._guard(self._hear, input_ids, scores)
        return scores

    def _hear(self, ids_BL: Tensor, scores_BV: Tensor) -> None:
        self._settle(ids_BL[:, -1])
        self._scores_BV, self._heard_BV = scores_BV, self.before_BV

    def _settle(self, drawn_B: Tensor) -> None:
        if self._scores_BV is not None:
            logps_BV, self._scores_BV = self._scores_BV.float().log_softmax(-1), None
            self._logps.append(logps_BV.gather(1, drawn_B[:, None])[:, 0])
            if self._heard_BV is not None:
                before_BV = self._heard_BV.float().log_softmax(-1)
                before_B = before_BV.gather(1, drawn_B[:, None])[:, 0]
                self.bent.append((self._logps[-1] - before_B).abs())

    def logps(self, sampled_BT: Tensor) -> Tensor | None:
        """Of what came of it. On a GPU a position more may have been computed than is kept."""
        tokens = sampled_BT.shape[1]
        if len(self._logps) < tokens:
            self._settle(sampled_BT[:, -1])
        if not tokens or len(self._logps) < tokens:
            return None
        return torch.stack(self._logps[:tokens], dim=1)


class _Before:
    """The first of the logits processors. It changes nothing."""

    def __init__(self, ear: _Ear, temperature: float, guard: Guard) -> None:
        self._ear, self._temperature, self._guard = ear, temperature, guard

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._guard(self._hear, scores)
        return scores

    def _hear(self, scores_BV: Tensor) -> None:
        self._ear.before_BV = scores_BV / self._temperature


def _bent(ears: list[_Ear], call: Call | None) -> list[float]:
    """Of every token that is kept."""
    if call is None or not ears[0].bent:
        return []
    tokens = call.sampled_ids_BT.shape[1]
    bent_BT = torch.stack(ears[0].bent[:tokens], 1)
    kept_BT = call.sampled_mask_BT[:, : bent_BT.shape[1]].bool()
    return bent_BT[kept_BT].tolist()


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
    ends_E = torch.tensor(ears[0].ends, dtype=torch.long, device=sampled_BT.device)
    is_end_BT = torch.isin(sampled_BT, ends_E).long()
    kept_BT = is_end_BT.cumsum(1) - is_end_BT == 0
    return Call(context_BL, mask_BL, sampled_BT, kept_BT, logps_BT)


def _told(args: Any, kwargs: dict[str, Any], answers: Any) -> Call | None:
    """One call of vLLM's engine, as it answers: a prompt, and the completions that it has."""
    prompts = args[0] if args else kwargs.get("prompts")
    if any(isinstance(one, dict) and "multi_modal_data" in one for one in prompts or ()):
        return None  # vLLM's ids of a picture are not the trainer's
    rows = [(answer.prompt_token_ids, one) for answer in answers for one in answer.outputs]
    context_BL, mask_BL = _filled([ids for ids, _ in rows], 0)
    sampled_BT, kept_BT = _filled([one.token_ids for _, one in rows], 0)
    logps_BT, _ = _filled([_logps(one) for _, one in rows], math.nan)
    return Call(context_BL, mask_BL, sampled_BT, kept_BT, logps_BT)


def _logps(one: Any) -> list[float]:
    if not one.logprobs:
        return [math.nan] * len(one.token_ids)
    pairs = zip(one.logprobs, one.token_ids, strict=True)
    return [getattr((given or {}).get(id), "logprob", math.nan) for given, id in pairs]


def _filled(rows: Sequence[Sequence[float]], value: float) -> tuple[Tensor, Tensor]:
    """As one tensor, and where it is not filled up."""
    kind = torch.long if isinstance(value, int) else torch.float32
    parts = [torch.tensor(list(row), dtype=kind) for row in rows]
    masks = [torch.ones(len(row), dtype=torch.bool) for row in rows]
    return (
        pad_sequence(parts, batch_first=True, padding_value=value),
        pad_sequence(masks, batch_first=True, padding_value=False),
    )


def engine_beside(trainer: GrpoTrainer) -> Any:
    """vLLM's engine where it runs in this process (`vllm_mode="colocate"`), else None."""
    if not getattr(trainer, "use_vllm", False) or getattr(trainer, "rollout_func", None):
        return None
    owners = (trainer, getattr(trainer, "vllm_generation", None))
    engines = (getattr(owner, "llm", None) for owner in owners)
    return next((one for one in engines if callable(getattr(one, "generate", None))), None)


def _sampled_from(trainer: GrpoTrainer) -> nn.Module | None:
    """The model whose `generate` TRL calls, without the shells of adapter and compiler."""
    if engine_of(trainer) != TRANSFORMERS:
        return None
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = without_adapter(getattr(model, "_orig_mod", model))
    return model if callable(getattr(model, "_get_logits_processor", None)) else None


def _rows(call: Call) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Context, ids and log-probs of each row, without what fills it up."""
    ids_BL, mask_BL, sampled_BT, kept_BT, logps_BT = (part.cpu().numpy() for part in call)
    logps_BT = np.where(np.isfinite(logps_BT), logps_BT, np.nan).astype(np.float32)
    for row, kept_T in enumerate(kept_BT):
        context = ids_BL[row][mask_BL[row] != 0]
        yield context, sampled_BT[row, kept_T], logps_BT[row, kept_T]
