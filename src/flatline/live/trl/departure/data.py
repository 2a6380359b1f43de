"""The stages before any log-prob: rows, prompts, mask, rewards, advantages."""

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.departure.advantages import SHOWN, judge_advantages, numbers
from flatline.live.departure.loss import trained
from flatline.live.hooks import Patch
from flatline.live.inputs import Inputs
from flatline.live.measure.played import Played
from flatline.live.records import DataOrder
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.live.trl.departure.sampled import samples_its_own_way
from flatline.live.trl.departure.scored import Row
from flatline.live.trl.departure.turns import OTHERS
from flatline.live.trl.settings import stop_ids
from flatline.spec import Asked
from flatline.spec.completions import said, was_cut
from flatline.spec.mask import loss_mask
from flatline.spec.numerics import PAID
from flatline.spec.prompts import prompt_ids, without_padding
from flatline.spec.rewards import total, weights
from flatline.spec.rows import broken_groups, visited_at_least

OTHER_IDS = " of the batch does not hold the ids that were sampled"
OTHER_MARKS = " of the batch does not mark its prompt with 1 and what is padding with 0"
HANDED_ON = (OTHER_IDS, OTHER_MARKS)
"""Words of findings about what is handed on to the passes."""
OTHER_SUM = "The weighted sum is wrong:"
"""How a finding begins that what functions pay is not put together as asked."""
MIXED = "A group is not one prompt"
"""How a finding begins that prompts are mixed in a group."""
READ = ("system", "developer", "user")
"""Roles of messages that the model must see: of its own turns templates drop the thinking."""
CHEAP = 0.5
"""Seconds of all reward functions together, up to which they are asked again."""


@dataclass(slots=True)
class Heard:
    """What was paid, where it was paid and where it arrived."""

    calls: dict[int, tuple[Mapping[str, Any], list[Any]]] = field(default_factory=dict)
    """By reward function: what it was given, what it returned."""
    arrived_BF: Tensor | None = None
    """What the trainer took from there."""
    mean: float | None = None
    """Of the weighted sum, as the trainer logs it."""
    seconds: float = 0.0
    """All functions together: a judge that takes long is not asked twice."""
    earns_most: dict[int, str | None] = field(default_factory=dict)
    """By reward function: the column that holds right answers, as far as it was tried."""


@contextmanager
def hearing(trainer: Any) -> Iterator[Heard]:
    """Listens to the reward functions that are plain functions, and to what arrives of them."""
    heard, functions = Heard(), list(trainer.reward_funcs)

    def listener(at: int, function: Any) -> Any:
        def paid(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            found = function(*args, **kwargs)
            heard.seconds += time.perf_counter() - begun
            heard.calls[at] = (dict(kwargs), list(found))
            return found

        return paid

    def arriving(calculate: Any, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = calculate(*args, **kwargs)
        heard.arrived_BF = found.detach().double().cpu()
        return found

    for at, function in enumerate(functions):
        if _plain(function):
            trainer.reward_funcs[at] = listener(at, function)
    try:
        with Patch(trainer, "_calculate_rewards", arriving):
            yield heard
        logged = trainer._metrics["train"].get("reward") or [None]
        heard.mean = logged[-1]
    finally:
        trainer.reward_funcs[:] = functions


def judge_rows(
    order: DataOrder | None, asked: Asked, rows: Sequence[Mapping[str, Any]]
) -> StageFound:
    """Is each prompt there as often as asked, and does an epoch visit the data?"""
    broken = broken_groups([repr(row.get("prompt")) for row in rows], asked.group)
    if broken or (order is not None and not order.groups_whole):
        at = (broken or [0])[0] * asked.group
        group = [str(row.get("prompt"))[-40:] for row in rows[at : at + asked.group]]
        return departs(
            "rows",
            f"{MIXED} {asked.group} times.",
            f"rows {at} to {at + asked.group - 1} end in {group}",
        )
    if order is None:
        return same("rows", "Groups are whole; the data cannot be counted.")
    prompts = max(1, asked.rows_in_pass * asked.passes_in_generation // asked.group)
    least = visited_at_least(order.dataset_size, prompts)
    visited = round(order.visited_share * order.dataset_size)
    text = f"An epoch visits {visited} of {order.dataset_size} rows"
    if order.epoch_complete and visited < least and not order.weighted:
        return departs(
            "rows", f"{text}; all that fill whole generations are {least}.", measured=visited
        )
    return same("rows", f"Groups are whole. {text}.")


def judge_prompts(trainer: Any, prompts: list[Any], found: list[list[int]]) -> StageFound:
    """Is what stands in front of each completion the prompt through its template?"""
    tokenizer = trainer.processing_class
    longest = getattr(trainer.args, "max_prompt_length", None) or 0  # of older releases
    for row, (prompt, ids) in enumerate(zip(prompts, found, strict=True)):
        expected = rendered(trainer, prompt)[-longest:]
        if expected != ids:
            at = next(
                (k for k, (a, b) in enumerate(zip(expected, ids, strict=False)) if a != b), -1
            )
            at = min(len(expected), len(ids)) if at < 0 else at
            return departs(
                "prompts",
                f"Prompt {row} is not its messages through the template: {len(expected)} tokens "
                f"expected, {len(ids)} found, the first other one at {at}.",
                f"expected {tokenizer.decode(expected[at : at + SHOWN])!r}, "
                f"found {tokenizer.decode(ids[at : at + SHOWN])!r}",
            )
    return _unread(trainer, prompts) or same(
        "prompts", f"{len(found)} prompts are their messages through the template."
    )


def judge_asked(trainer: Any, played: Played) -> StageFound | None:
    """The same of a sampler that cannot be asked for a few tokens more, vLLM's among them: what it
    says that it sampled behind, one row of each group. None where it does not say, or where
    somebody else than TRL makes messages of the data: an environment, a method of one's own."""
    result, _, asked = played.generated or (None, {}, ())
    found = result[0] if isinstance(result, tuple) else None
    if not isinstance(found, list) or len(found) != len(asked):
        return None
    every = slice(None, None, int(trainer.num_generations))
    prompts = asked[every]
    others = samples_its_own_way(trainer) or any(getattr(trainer, one, None) for one in OTHERS)
    if others or not all(map(_asks, prompts)):
        return None
    return judge_prompts(trainer, list(prompts), [list(ids) for ids in found[every]])


def _asks(prompt: Any) -> bool:
    """Whether it is messages that end before the model's turn: an engine may put what it likes
    before a plain text, and a turn that has begun is continued in more than one way."""
    messages = prompt if isinstance(prompt, list) and prompt else [{"role": "assistant"}]
    return all(isinstance(one, dict) for one in messages) and messages[-1]["role"] != "assistant"


def _unread(trainer: Any, prompts: Sequence[Any]) -> StageFound | None:
    """Messages that could say anything: the template leaves them out."""
    for prompt in prompts:
        messages = [] if isinstance(prompt, str) else list(prompt)
        for k, message in enumerate(messages):
            text = message.get("content")
            if message.get("role") not in READ or not isinstance(text, str) or not text.strip():
                continue
            other = [*messages[:k], {**message, "content": f"7Q {text} 7Q"}, *messages[k + 1 :]]
            if rendered(trainer, other) == rendered(trainer, messages):
                found = departs(
                    "prompts",
                    f"The chat template leaves the {message['role']} message out of the prompt: "
                    "whatever it says, the model reads the same tokens.",
                    f"not in the prompt: {text[:120]!r}",
                    fix="Write {chat_template} so that it renders every message, or move the text "
                    "into the user's message.",
                )
                return replace(
                    found,
                    given=True,
                    expected="every message in the prompt",
                    headline="Your model never sees a message of your prompts.",
                )
    return None


def rendered(trainer: Any, prompt: Any) -> list[int]:
    """Token ids of a prompt by the specification; with tools, as the template shows them."""
    options = dict(getattr(trainer.args, "chat_template_kwargs", None) or {})
    tools = getattr(trainer, "tools", None) or None
    template = getattr(trainer, "chat_template", None)
    if tools and template:
        options["chat_template"] = template
    return prompt_ids(trainer.processing_class, prompt, tools, options)


def rows_of(trainer: Any, asked: Asked, played: Played) -> list[Row] | None:
    """What was sampled, as the specification sees it; None where it is not known."""
    result = None if played.generated is None else played.generated.result
    if not isinstance(result, tuple) or len(result) < 2:
        return None
    prompts, completions = result[:2]
    # RLOO gives its messages there, up to 0.26 nothing, and TRL up to 0.25 a count.
    own = result[2] if len(result) > 3 and isinstance(result[2], list) else None
    ends = ends_of(trainer)
    rows = []
    for k, completion in enumerate(completions):
        completion = [int(token) for token in completion]
        cut = was_cut(completion, ends)
        mask_T = loss_mask(asked, len(completion), None if own is None else own[k], cut)
        rows.append(Row(list(prompts[k]), completion, mask_T, cut))
    return rows


def ends_of(trainer: Any) -> set[int]:
    """Tokens with which a completion ends that was not cut."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    return stop_ids(trainer) | {tokenizer.pad_token_id}


def judge_ends(trainer: Any, rows: Sequence[Row]) -> StageFound | None:
    """None where no completion goes on with padding behind its first stop token."""
    stops = stop_ids(trainer)
    for k, row in enumerate(rows):
        behind = row.completion[len(said(row.completion, stops)) :]
        if behind and set(behind) == {trainer.processing_class.pad_token_id}:
            return departs(
                "completions",
                f"Completion {k} continues with {len(behind)} tokens of padding after its stop "
                "token, as if the model had written them.",
                f"row {k} ends with ids {row.completion[-SHOWN:]}",
                measured=len(behind),
            )
    return None


def judge_mask(inputs: Inputs, rows: Sequence[Row]) -> StageFound:
    """Are exactly the sampled ids in the batch, and exactly what the model wrote in the loss? Where
    the ids are others it is a finding of the completions."""
    mask_BT = trained(inputs).cpu()
    wrong = []
    for k, row in enumerate(rows):
        ids = inputs["completion_ids"][k, : len(row.completion)].tolist()
        shown = without_padding(inputs["prompt_ids"][k].cpu(), inputs["prompt_mask"][k].cpu())
        if ids != row.completion or shown != row.prompt:
            return departs(
                "completions" if ids != row.completion else "prompts",
                f"Row {k}{OTHER_IDS}.",
                f"row {k}: sampled {row.completion[:SHOWN]}, in the batch {ids[:SHOWN]}",
            )
        marks = set(inputs["prompt_mask"][k].tolist())
        if not marks <= {0, 1}:
            return departs(
                "prompts",
                f"Row {k}{OTHER_MARKS}.",
                f"row {k}: the mask of its prompt holds {sorted(marks)[:SHOWN]}",
            )
        found_T = mask_BT[k, : len(row.completion)]
        if not torch.equal(found_T, row.mask_T) or bool(mask_BT[k, len(row.completion) :].any()):
            wrong.append(k)
    if not wrong:
        tokens = sum(int(row.mask_T.sum()) for row in rows)
        return same("mask", f"Exactly the {tokens} tokens that the model wrote carry a loss.")
    k, row = wrong[0], rows[wrong[0]]
    return departs(
        "mask",
        f"The loss mask of {len(wrong)} of {len(rows)} completions is wrong: row {k} has "
        f"{int(mask_BT[k].sum())} trained tokens, {int(row.mask_T.sum())} were expected"
        f"{' (cut at the limit)' if row.cut else ''}.",
        f"row {k} begins {_bits(mask_BT[k])}, expected {_bits(row.mask_T)}",
        measured=len(wrong) / len(rows),
    )


def judge_rewards(
    trainer: Any, asked: Asked, heard: Heard, played: Played, advantages_B: Tensor
) -> StageFound:
    """Does each row get what its own completion was paid, summed with the weights asked for?"""
    arrived_BF = heard.arrived_BF
    if arrived_BF is None:
        return unknown("rewards", "The trainer computes no rewards where TRL does.")
    for at, (given, paid) in sorted(heard.calls.items()):
        name = _name(trainer, at)
        other = _other_row(given, played)
        if other:
            return departs("rewards", f"`{name}` judges another row: {other}.")
        paid_B = torch.tensor([torch.nan if p is None else float(p) for p in paid]).double()
        off_B = (arrived_BF[:, at] - paid_B).abs()
        wrong = (off_B > PAID * (1 + paid_B.abs())) | (arrived_BF[:, at].isnan() != paid_B.isnan())
        if bool(wrong.any()):
            return departs(
                "rewards",
                f"{int(wrong.sum())} of {len(paid)} rows do not get what `{name}` paid for them.",
                f"paid {numbers(paid_B)}, arrived {numbers(arrived_BF[:, at])}",
                measured=float(wrong.double().mean()),
            )
    return _judge_sum(trainer, asked, heard, arrived_BF, advantages_B) or same(
        "rewards",
        f"{len(heard.calls)} functions: each row gets the weighted sum of what it earned.",
    )


def _judge_sum(
    trainer: Any, asked: Asked, heard: Heard, arrived_BF: Tensor, advantages_B: Tensor
) -> StageFound | None:
    """The mean that is logged; where weights and advantages are right, only the log is wrong."""
    expected = float(np.nanmean(total(asked, arrived_BF)))
    if heard.mean is None or abs(heard.mean - expected) <= PAID * (1 + abs(expected)):
        return None
    weight_F = torch.from_numpy(weights(asked, arrived_BF.shape[1]))
    own_F = getattr(trainer, "reward_weights", weight_F).double().cpu()
    as_asked = own_F.shape == weight_F.shape and torch.allclose(own_F, weight_F)
    if as_asked and not judge_advantages(asked, arrived_BF, advantages_B).departs:
        return None
    mean_F = arrived_BF.nanmean(0)
    return departs(
        "rewards",
        f"{OTHER_SUM} with the weights asked for ({numbers(weight_F)}) the rows "
        f"earn {expected:.4f} on average, the trainer has {heard.mean:.4f}.",
        f"the functions paid {numbers(mean_F)} on average",
        measured=heard.mean - expected,
    )


def _plain(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 -- an object may be async in its call
    slow = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return callable(function) and not isinstance(function, torch.nn.Module) and not slow


def _name(trainer: Any, at: int) -> str:
    names = getattr(trainer, "reward_func_names", None) or []
    return str(names[at]) if at < len(names) else f"reward function {at}"


def _other_row(given: Mapping[str, Any], played: Played) -> str:
    """A column that was not the row's own, in words; empty where all are."""
    for name, values in given.items():
        if not isinstance(values, list) or len(values) != len(played.rows):
            continue
        for k, (value, row) in enumerate(zip(values, played.rows, strict=True)):
            own = row.get("prompt" if name == "prompts" else name)
            simple = isinstance(own, str | int | float) and isinstance(value, str | int | float)
            if simple and value != own:
                return f"row {k} is judged with `{name}` {value!r}, its own is {own!r}"
    return ""


def alike(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two payments are the same, row by row."""
    if len(a) != len(b):
        return False
    pairs = zip(a, b, strict=True)
    return all(
        x is y or (None not in (x, y) and abs(float(x) - float(y)) <= PAID) for x, y in pairs
    )


def _bits(mask_T: Tensor) -> str:
    return "".join("1" if on else "0" for on in mask_T[: 2 * SHOWN].tolist())
