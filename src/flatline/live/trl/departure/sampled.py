"""A few tokens sampled by TRL's own `generate`, with the sampler's log-probs of them.

TRL's `generate` gives none; the model's head, heard while it samples, does.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatline.live.hooks import Patch
from flatline.live.measure.played import Played
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.live.trl.departure.scored import Row, sampling_hooks
from flatline.live.trl.settings import stop_ids
from flatline.live.where.package import TRL, library_of
from flatline.spec.completions import said
from flatline.spec.delivery import apart
from flatline.spec.numerics import Tolerance

TOKENS = 12
"""Sampled for each prompt: one disagreement in the first shows a wrong context or other weights."""
ROWS = 4
"""Prompts that are sampled for."""
FIRST = 64
"""Rows of the data of which the shortest and the longest prompt are taken."""
TURNS = "max_tool_calling_iterations"
"""TRL's name for how often tools are asked in one completion."""
CHOOSING = ("top_p", "top_k", "min_p", "repetition_penalty")
"""Arguments of `generate`, by TRL's names too, that decide beside the temperature which tokens may
be drawn."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the sampler drew, beside what the trainer was given."""

    drawn: list[list[int]]
    """By the model's own `generate`, up to the stop token."""
    given: list[list[int]]
    """By the trainer's `_generate`."""
    prompts: list[list[int]]
    """As the trainer rendered them."""
    logps: list[Tensor]
    """The sampler's, of what was drawn."""
    temperature: float | None
    """That it was drawn with; 0 where the likeliest token was taken, None where nobody says."""
    limit: int | None
    """Tokens of a completion that `generate` is told to stop at; None where it is told nothing."""
    choosing: Mapping[str, Any]
    """What it is told of `CHOOSING`; None where it is told nothing."""


def own_sampler(trainer: Any) -> bool:
    """Whether completions come from somewhere else than TRL's plain `generate`."""
    names = ("rollout_func", "use_vllm", "environments", "environment_factories")
    others = (*names, "use_transformers_continuous_batching", "use_transformers_paged")
    if plays_turns(trainer) and not hasattr(trainer, TURNS):
        return True
    return any(getattr(trainer, name, None) for name in others) or not hasattr(trainer, "_generate")


def plays_turns(trainer: Any) -> bool:
    """Whether a completion may have several turns, with replies of tools between them."""
    return bool(getattr(trainer, "tools", None))


def samples_its_own_way(trainer: Any) -> bool:
    """Whether the user's class changes how completions are made."""
    names = ("_generate", "_generate_single_turn", "_tokenize_prompts")
    methods = (getattr(type(trainer), name, None) for name in names)
    return any(one is not None and library_of(one.__module__) != TRL for one in methods)


def prompts_of(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What is sampled for: prompts of the batch, and the shortest and the longest of the first rows
    of the data, since prompts of one length need no padding."""
    own = [row["prompt"] for row in rows]
    with suppress(Exception):  # streamed data has no first rows
        data = trainer.train_dataset
        first = [data[k]["prompt"] for k in range(min(len(data), FIRST))]
        by_length = sorted(first, key=lambda one: len(str(one)))
        return [*own[: ROWS - 2], by_length[0], by_length[-1]]
    return own[:ROWS]


def sample(trainer: Any, prompts: list[Any]) -> Sampled | None:
    """A few tokens of each prompt; None where the sampler cannot be heard."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    calls: list[tuple[int, Tensor]] = []
    temperatures: list[float | None] = []
    limits: list[int | None] = []
    choosing: list[dict[str, Any]] = []
    usual = trainer.generation_config.max_new_tokens

    def listening(generate: Any, *args: Any, **kwargs: Any) -> Any:
        found = generate(*args, **kwargs)
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(found, Tensor) and isinstance(ids, Tensor):
            calls.append((ids.shape[1], found.detach().clone()))
            temperatures.append(_temperature(model, kwargs))
            told = _told(model, kwargs, "max_new_tokens")
            limits.append(usual if told == TOKENS else told)
            choosing.append({name: _told(model, kwargs, name) for name in CHOOSING})
        return found

    with _short(trainer), sampling_hooks(model) as heard, Patch(model, "generate", listening):
        found = trainer._generate(prompts)
    if len(calls) != 1 or not isinstance(found, tuple):
        return None
    width, ids_BL = calls[0]
    new_BT = ids_BL[:, width:]
    if len(new_BT) != len(prompts) or len(heard) < new_BT.shape[1]:
        return None
    every = torch.stack(heard[: new_BT.shape[1]], 1) / trainer.args.temperature
    logps_BT = every.log_softmax(-1).gather(2, new_BT[..., None].to(every.device))[..., 0]
    stops = stop_ids(trainer)
    drawn = [said(row, stops) for row in new_BT.tolist()]
    return Sampled(
        drawn=drawn,
        given=[list(one) for one in found[1]],
        prompts=[list(one) for one in found[0]],
        logps=[logps_T[: len(one)] for logps_T, one in zip(logps_BT, drawn, strict=True)],
        temperature=temperatures[0],
        limit=limits[0],
        choosing=choosing[0],
    )


def _temperature(model: Any, kwargs: Mapping[str, Any]) -> float | None:
    """Of one call of `generate`: by its own arguments, else its configuration, else the model's."""
    if _told(model, kwargs, "do_sample") is False:
        return 0.0
    found = _told(model, kwargs, "temperature")
    return None if found is None else float(found)


def _told(model: Any, kwargs: Mapping[str, Any], name: str) -> Any:
    config = kwargs.get("generation_config") or getattr(model, "generation_config", None)
    return kwargs.get(name, getattr(config, name, None))


def judge_drawing(found: Sampled, args: Any) -> StageFound | None:
    """None where tokens are drawn at the temperature that was asked for and from as many, as far as
    is known."""
    asked = args.temperature
    if found.temperature is None or math.isclose(found.temperature, asked, rel_tol=1e-6):
        return _judge_choosing(found, args)
    how = f"at temperature {found.temperature:g}" if found.temperature else "as the likeliest one"
    return departs(
        "completions",
        f"The sampler takes each token {how}; temperature {asked:g} was asked for.",
        f"temperature of `generate`: {found.temperature:g}; asked for: {asked:g}",
        measured=found.temperature,
    )


def _judge_choosing(found: Sampled, args: Any) -> StageFound | None:
    """None where the sampler chooses among the tokens that were asked for, as far as is known."""
    given = getattr(args, "generation_kwargs", None) or {}
    for name, told in found.choosing.items():
        asked = given.get(name, getattr(args, name, None))
        if asked is not None and told is not None and told != asked:
            return departs(
                "completions",
                f"The sampler draws with {name} {told:g}; {asked:g} was asked for.",
                f"`{name}` of `generate`: {told:g}; asked for: {asked:g}",
                measured=float(told),
            )
    return None


def judge_limit(found: Sampled, args: Any) -> StageFound | None:
    """None where a completion may be as long as was asked for."""
    given = getattr(args, "generation_kwargs", None) or {}
    asked = given.get("max_new_tokens", args.max_completion_length)
    if asked is None or found.limit == asked:
        return None
    told = "does not know where to stop" if found.limit is None else f"stops after {found.limit}"
    return departs(
        "completions",
        f"The sampler {told}; {asked} tokens were asked for (`max_completion_length`).",
        f"`max_new_tokens` of `generate`: {found.limit}; asked for: {asked}",
    )


def judge_kept(
    whole: Played, stops: Collection[int], longest: int, own: bool = False
) -> StageFound | None:
    """None where each completion of the batch is what was drawn for it, to its end or to the
    longest length, as far as the sampler was heard. A sampler of the user's `own` may end where it
    likes."""
    result = None if whole.generated is None else whole.generated.result
    given = result[1] if isinstance(result, tuple) else None
    if not whole.drawn or given is None or len(given) != len(whole.drawn):
        return None
    for row, (one, ids) in enumerate(zip(whole.drawn, given, strict=True)):
        drawn, kept = [int(token) for token in one.ids], [int(token) for token in ids]
        ends = own or len(kept) >= longest or (kept and kept[-1] in stops)
        if kept != drawn and not (ends and kept == drawn[: len(kept)]):
            found = departs(
                "completions",
                f"{KEPT}row {row} has {len(kept)} tokens, {len(drawn)} were sampled for it.",
                f"row {row}: sampled ids {drawn[:8]}, trained ids {kept[:8]}",
            )
            return replace(found, row=row)
    return None


KEPT = "The trainer does not keep what was sampled: "
"""How a finding about the whole batch begins."""


def judge_completions(found: Sampled) -> StageFound | None:
    """None where the trainer gets what was drawn, row by row."""
    for row, (drawn, given) in enumerate(zip(found.drawn, found.given, strict=True)):
        if drawn != given:
            other = next(
                (k for k, one in enumerate(found.drawn) if one == given and k != row), None
            )
            place = "" if other is None else f", which was sampled for row {other}"
            return departs(
                "completions",
                f"The trainer trains on other completions than were sampled: row {row}{place}.",
                f"row {row}: sampled ids {drawn[:8]}, trained ids {given[:8]}",
            )
    return None


def drawn_rows(found: Sampled, prompts: list[list[int]]) -> list[Row]:
    """What was drawn, behind the prompts that were asked."""
    pairs = zip(prompts, found.drawn, strict=True)
    return [Row(prompt, drawn, torch.ones(len(drawn)).bool(), False) for prompt, drawn in pairs]


def judge_sampler(
    stage: str,
    found: Sampled,
    rows: Sequence[Row],
    policy: Sequence[Tensor],
    start: Sequence[Tensor],
    limit: Tolerance,
) -> StageFound:
    """The sampler's log-probs of what it drew against the policy's, row by row. `start` are those
    before the weights were moved: rounding grows with the way they went."""
    logps = found.logps
    if not sum(len(row.completion) for row in rows):
        return unknown(stage, "Nothing was sampled.")
    way = limit.moved * apart(torch.cat(list(policy)), torch.cat(list(start))).mean
    gap = apart(torch.cat(logps), torch.cat(list(policy)))
    text = f"sampler and policy differ by {gap.mean:.2g} nats a token, at most {gap.worst:.2g}"
    most = limit.logprob + way
    if gap.mean <= most and gap.worst <= limit.logprob_worst + 10 * way:
        return same(stage, f"{text[0].upper()}{text[1:]}.", gap.mean, most)
    return departs(
        stage,
        f"On the tokens that it drew itself, {text}; rounding explains {most:.2g}.",
        _token(rows, logps, policy),
        measured=gap.mean,
        limit=most,
    )


def _token(rows: Sequence[Row], logps: Sequence[Tensor], policy: Sequence[Tensor]) -> str:
    """The token with the largest difference, in words."""
    pairs = zip(logps, policy, strict=True)
    gaps = [float((a - b).abs().max()) if a.numel() else 0.0 for a, b in pairs]
    row = max(range(len(rows)), key=gaps.__getitem__)
    at = int((logps[row] - policy[row]).abs().argmax())
    return (
        f"row {row}, token {at} (id {rows[row].completion[at]}): the sampler drew it with log-prob "
        f"{float(logps[row][at]):.3f}; after this prompt the policy gives it "
        f"{float(policy[row][at]):.3f}"
    )


@contextmanager
def _short(trainer: Any) -> Iterator[None]:
    """Only a few tokens each, and no tool is asked."""
    config, kwargs = trainer.generation_config, trainer.generation_kwargs
    before = config.max_new_tokens, kwargs.get("max_new_tokens")
    turns = getattr(trainer, TURNS, None)
    config.max_new_tokens = kwargs["max_new_tokens"] = TOKENS
    if turns is not None:
        setattr(trainer, TURNS, 0)
    try:
        yield
    finally:
        config.max_new_tokens, kwargs["max_new_tokens"] = before
        if turns is not None:
            setattr(trainer, TURNS, turns)
