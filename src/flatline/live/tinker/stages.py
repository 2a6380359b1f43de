"""Two steps of a loop on the Tinker API, stage by stage.

The loop's own step and the API's definition say what each stage must be: a target is the token that
follows, tokens with a loss are those that were sampled, old log-probs are the sampler's, a loss is
the formula of its name, a sampling client has the newest weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from flatline.live.departure.advantages import judge_advantages
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.live.tinker.data import Drawn, Row, clip_of
from flatline.live.tinker.watch import Step
from flatline.live.watch.rows import Shelf
from flatline.spec import STAGES, Asked

SAME = 0.1
"""Nats between two log-probs of one token under one policy, on average: bf16 rounds to less, also
where experts are routed. Smaller gaps are H20's."""
EQUAL = 1e-4
"""Nats between numbers that were copied."""
LOSS = 1e-3
"""Of a loss and of its formula, relative to 1 plus its size."""
AGAINST = 0.3
"""Correlation from which on a direction is reported."""
FEWEST = 8
"""Rollouts with an advantage of which a direction is read."""


@dataclass(kw_only=True)
class Seen:
    """What a checkup saw of two steps."""

    steps: Sequence[Step]
    samples: Sequence[Drawn]
    after: Sequence[np.ndarray]
    """Log-probs of the first step's targets after it."""
    again: Sequence[Sequence[np.ndarray]]
    """The same twice by the client that was left as it was."""
    group: int
    settings: Mapping[str, Any]

    @property
    def rows(self) -> list[Row]:
        """Of the first step."""
        return self.steps[0].rows

    @cached_property
    def spans(self) -> list[list[tuple[int, Drawn]]]:
        """Of each row of the first step: where samples begin, and which."""
        return self.spans_of(self.steps[0])

    def sampled(self, step: Step) -> list[Drawn]:
        """What was sampled for a step, trained or not."""
        return [one for one in self.samples if one.place and one.place[0] == step.number]

    def spans_of(self, step: Step) -> list[list[tuple[int, Drawn]]]:
        """Of each row of a step, among what was sampled for it: the same may be drawn again."""
        shelf, taken, found = Shelf(), set[int](), []
        shelf.add(self.sampled(step))
        for row in step.rows:
            spans: Any = shelf.find(row.ids, taken)
            taken.update(id(sample) for _, sample in spans)
            found.append(spans)
        return found

    @cached_property
    def order(self) -> list[int]:
        """Rows of the first step, those of a group together."""
        numbers: dict[Any, int] = {}
        keys = [spans[0][1].key if spans else None for spans in self.spans]
        groups = [numbers.setdefault(key, len(numbers)) for key in keys]
        return sorted(range(len(keys)), key=lambda at: (groups[at], at))

    def start(self, at: int) -> int:
        """Token of a row with which its completion begins."""
        trained = np.flatnonzero(self.rows[at].trained)
        first = int(trained[0]) + 1 if len(trained) else len(self.rows[at].ids) - 1
        return max(1, self.spans[at][0][0] if self.spans[at] else first)

    def sampler(self, at: int) -> np.ndarray:
        """The sampler's log-prob of each target of a row; NaN where it drew none."""
        return sampler_of(self.rows[at], self.spans[at])


def sampler_of(row: Row, spans: Sequence[tuple[int, Drawn]]) -> np.ndarray:
    found = np.full(len(row.target), np.nan)
    for begin, sample in spans:
        size = min(len(sample.ids), len(row.ids) - begin)
        found[begin - 1 : begin - 1 + size] = sample.logps[:size]
    return found


def stages(seen: Seen) -> dict[str, StageFound]:
    """Every stage by its name."""
    found = {stage: unknown(stage, "The API leaves it to the loop.") for stage in STAGES}
    return found | {
        "prompts": _prompts(seen),
        "completions": _completions(seen),
        "mask": _mask(seen),
        "advantages": _advantages(seen),
        "log-probs": _logprobs(seen),
        "ratio and KL": _ratio(seen),
        "loss": _loss(seen),
        "gradient": unknown("gradient", "The Tinker API shows no gradients."),
        "update": _update(seen),
        "delivery": _delivery(seen),
    }


def _prompts(seen: Seen) -> StageFound:
    pairs = [(row, one[0]) for row, one in zip(seen.rows, seen.spans, strict=True) if one]
    if not pairs:
        return unknown("prompts", "No trained row was seen being sampled.")
    other = [
        at
        for at, (row, (begin, sample)) in enumerate(pairs)
        if not np.array_equal(row.given[:begin], sample.prompt)
    ]
    if not other:
        return same(
            "prompts", f"All {len(pairs)} rows have the prompt that they were sampled with."
        )
    row, (begin, sample) = pairs[other[0]]
    return departs(
        "prompts",
        f"{len(other)} of {len(pairs)} rows do not have the prompt they were sampled with.",
        f"sampled after {_few(sample.prompt)}, trained after {_few(row.given[:begin])}",
        measured=len(other) / len(pairs),
    )


def _completions(seen: Seen) -> StageFound:
    wrong = [row for row in seen.rows if (row.trained & ~row.follows).any()]
    if wrong:
        return departs(
            "completions",
            f"In {len(wrong)} of {len(seen.rows)} rows, targets that carry a loss are not the "
            f"tokens that follow in `model_input`.{_shift(wrong[0])}",
            f"input {_few(wrong[0].given)}, target_tokens {_few(wrong[0].target)}",
            measured=len(wrong) / len(seen.rows),
        )
    heard = [one for one in seen.spans if one]
    cut = [
        at
        for at, one in enumerate(seen.spans)
        if any(len(sample.ids) > len(seen.rows[at].ids) - begin for begin, sample in one)
    ]
    if not heard:
        return unknown("completions", "No trained row was seen being sampled.")
    if cut:
        return departs(
            "completions",
            f"{len(cut)} of {len(heard)} rows end before what was sampled does.",
            measured=len(cut) / len(heard),
        )
    return same("completions", f"All {len(heard)} rows train the very ids that were sampled.")


def _shift(row: Row) -> str:
    """By how many tokens targets are off, in words."""
    if np.array_equal(row.target[1:], row.given[1:]):
        return " They are the input itself: the target of token t is token t + 1."
    if np.array_equal(row.target[:-2], row.given[2:]):
        return " They are one token too far."
    return ""


def _mask(seen: Seen) -> StageFound:
    others = lost = total = 0
    for at, row in enumerate(seen.rows):
        drawn = np.isfinite(seen.sampler(at))
        if not row.trained.any() or not drawn.any():
            continue
        total += int(row.trained.sum())
        others += int((row.trained & ~drawn).sum())
        lost += int((drawn & ~row.trained).sum())
    if not total:
        return unknown("mask", "No row has an advantage, so no token has a loss to be seen.")
    if not others and not lost:
        return same("mask", f"All {total} tokens with a loss were sampled, and none is left out.")
    return departs(
        "mask",
        f"{others} of {total} tokens with a loss were not sampled, and {lost} sampled tokens have "
        "none. What counts is where `advantages` (times `weights`, if given) are not 0.",
        measured=(others + lost) / total,
    )


def _advantages(seen: Seen) -> StageFound:
    told = seen.settings.get("scale_rewards")
    uneven = any(len(set(row.advantage[row.trained].tolist())) > 1 for row in seen.rows)
    paid = [(one.reward for _, one in seen.spans[at]) for at in seen.order]
    rewards = [next((value for value in one if value is not None), None) for one in paid]
    if any(one is None for one in rewards):
        return unknown("advantages", "No rewards were given: call `flatline.tinker.rewards`.")
    of_all = told == "batch" and len(rewards) < len(seen.sampled(seen.steps[0]))
    if uneven or of_all or len(rewards) % seen.group:
        return unknown("advantages", "Not specified: advantages other than one per row.")
    found = torch.tensor([seen.rows[at].mean_advantage for at in seen.order])
    arrived = torch.tensor(rewards, dtype=torch.float64)[:, None]
    scales = [str(told)] if told is not None else ["none", "group", "batch"]
    judged = [judge_advantages(_asked(seen, scale), arrived, found) for scale in scales]
    fitting = next((one for one in judged if not one.departs), None)
    if fitting is not None or told is not None:
        return fitting or judged[0]
    return unknown(
        "advantages",
        "They are those of no common formula. Say which is meant: "
        '`settings={"scale_rewards": "group"}` (or "none", "batch")',
    )


def _asked(seen: Seen, scale: str) -> Asked:
    return Asked(
        group=seen.group,
        passes=1,
        rows_in_pass=len(seen.rows),
        passes_in_generation=1,
        scale=scale,
        longest=max(len(row.ids) for row in seen.rows),
    )


def _logprobs(seen: Seen) -> StageFound:
    (own, twice), copied = seen.again, [row.trainer for row in seen.rows]
    apart = float(np.abs(np.concatenate(own) - np.concatenate(twice)).mean())
    if apart > SAME:
        return departs(
            "log-probs",
            f"Two forward passes over the same data are {apart:.2g} nat apart: either the "
            "server draws (dropout), or something changed the weights that a checkup leaves alone.",
            measured=apart,
            limit=SAME,
        )
    moved = float(np.abs(np.concatenate(own) - np.concatenate(copied)).mean())
    if moved > SAME:
        return departs(
            "log-probs",
            f"After two steps of a copy, the training itself is {moved:.2g} nat from where both "
            "began: the server does not keep them apart, and the training was changed.",
            measured=moved,
            limit=SAME,
        )
    late = max((sample.version for one in seen.spans for _, sample in one), default=0)
    if late or _warm(seen):
        return unknown("log-probs", "Sampled with other weights, or at a temperature other than 1.")
    gap = _gap(seen.steps[0], seen.spans)
    if not gap.size:
        return unknown("log-probs", "The sampler gave no log-probs of what is trained.")
    mean = float(np.abs(gap).mean())
    told = f"sampler and trainer are {mean:.2g} nat apart on {gap.size} tokens"
    if mean <= SAME:
        return same("log-probs", f"At the same weights, {told}.", mean, SAME)
    return departs("log-probs", f"At the same weights, {told}.", measured=mean, limit=SAME)


def _gap(step: Step, spans: Sequence[Sequence[tuple[int, Drawn]]]) -> np.ndarray:
    """Trainer minus sampler, of the tokens that were sampled."""
    pairs = zip(step.rows, spans, strict=True)
    gaps = [row.trainer - sampler_of(row, one) for row, one in pairs]
    flat = np.concatenate([*gaps, np.zeros(0)])
    return np.asarray(flat[np.isfinite(flat)])


def _warm(seen: Seen) -> bool:
    return any(sample.params.temperature != 1 for one in seen.spans for _, sample in one)


def _ratio(seen: Seen) -> StageFound:
    apart, shifted, known = 0, 0, 0
    for at, row in enumerate(seen.rows):
        if row.old is None:
            continue
        sampler = seen.sampler(at)
        looked = row.trained & np.isfinite(sampler)
        known += int(looked.sum())
        apart += int((np.abs(row.old - sampler) > EQUAL)[looked].sum())
        moved = np.abs(np.roll(row.old, 1) - sampler), np.abs(np.roll(row.old, -1) - sampler)
        shifted += int((np.minimum(*moved) < EQUAL)[looked].sum())
    if not known:
        return unknown("ratio and KL", "The loss is given no log-probs to take a ratio to.")
    if not apart:
        return same(
            "ratio and KL", f"Ratios of {known} tokens are taken to the sampler's log-probs."
        )
    why = " They are those of the neighbouring token." if shifted > apart / 2 else ""
    return departs(
        "ratio and KL",
        f"{apart} of {known} `logprobs` of the loss are not what the sampler gave for the same "
        f"token.{why}",
        measured=apart / known,
    )


def _loss(seen: Seen) -> StageFound:
    passes = seen.steps[0].passes
    apart = [np.zeros(0)]
    for one in passes:
        for row in one.rows:
            expected = _formula(row, one.loss_fn, one.config)
            if expected is not None and row.loss is not None:
                apart.append(np.abs(row.loss - expected) / (1 + np.abs(expected)))
    known, name = np.concatenate(apart), passes[0].loss_fn
    if not known.size:
        return unknown("loss", "The server does not give the loss of each token.")
    worst = float(known.max())
    if worst <= LOSS:
        return same("loss", f"`{name}` of {known.size} tokens is that of its formula.", worst, LOSS)
    return departs("loss", f"`{name}` is not its formula.", measured=worst, limit=LOSS)


def _formula(row: Row, loss_fn: str, config: Any) -> np.ndarray | None:
    """The loss of each token by its name; None where it is not known."""
    mask = np.ones(len(row.target)) if row.mask is None else row.mask
    if loss_fn == "cross_entropy":
        return np.asarray(-row.trainer * mask)
    if row.old is None or loss_fn not in ("importance_sampling", "ppo"):
        return None
    ratio = np.exp(row.trainer - row.old)
    gained = ratio * row.advantage
    if loss_fn == "ppo":
        gained = np.minimum(gained, np.clip(ratio, *clip_of(config)) * row.advantage)
    return np.asarray(-gained * mask)


def _update(seen: Seen) -> StageFound:
    change = [
        float((after - row.trainer)[row.trained].sum())
        for row, after in zip(seen.rows, seen.after, strict=True)
    ]
    advantage = [row.mean_advantage for row in seen.rows]
    told = [(a, c) for a, c in zip(advantage, change, strict=True) if a]
    if len(told) < FEWEST:
        return unknown("update", f"Only {len(told)} rows have an advantage.")
    gains, moved = np.array(told).T
    if not moved.any():
        return departs("update", "The optimizer step changed no log-prob of what it trained on.")
    if not np.ptp(gains):
        return unknown("update", "All advantages are the same.")
    found = float(np.corrcoef(gains, moved)[0, 1])
    text = f"advantage and change of log-prob correlate by {found:.2f} over {len(told)} rows."
    if found < -AGAINST:
        return departs("update", f"What was rewarded became less likely: {text}", measured=found)
    if found < AGAINST:
        return unknown("update", f"The step is too small or too large to be read: {text}")
    return same("update", f"What was rewarded became more likely: {text}", found)


def _delivery(seen: Seen) -> StageFound:
    if len(seen.steps) < 2:
        return unknown("delivery", "Only one step was taken.")
    second = seen.steps[1]
    spans = seen.spans_of(second)
    behind = [second.number - 1 - sample.version for one in spans for _, sample in one]
    if not behind:
        return unknown("delivery", "No row of the second step was seen being sampled.")
    ahead = int(seen.settings.get("batches_ahead") or 0)
    if max(behind) > ahead:
        return departs(
            "delivery",
            f"{sum(one > ahead for one in behind)} of {len(behind)} rollouts of the second step "
            "were sampled by a client with the weights from before the first: it was not renewed "
            "after `optim_step` (`save_weights_and_get_sampling_client`).",
            measured=float(max(behind)),
        )
    gap = _gap(second, spans)
    mean = float(np.abs(gap).mean()) if gap.size else float("nan")
    if mean > SAME and not _warm(seen) and not ahead:
        return departs(
            "delivery",
            f"After a step, sampler and trainer are {mean:.2g} nat apart on {gap.size} tokens, "
            "although the sampling client is new.",
            measured=mean,
            limit=SAME,
        )
    return same(
        "delivery", f"The second step's rollouts come from the newest weights ({mean:.2g} nat)."
    )


def _few(ids: np.ndarray) -> str:
    shown = ids[-8:].tolist()
    return f"{'... ' if len(ids) > len(shown) else ''}{shown}"
