"""Sampler against trainer, token by token: what several hypotheses read off the log-probs.

Only tokens that the model wrote and that carry loss are compared. What else is trained has no
log-prob of the sampler, and is the business of H02 token-masking.

Before the first update both sides hold the same weights, so any difference there is one of context,
tokens, arithmetic or sampling, never of delivery.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence
from flatline.hypotheses.weights import trains_later
from flatline.rollout.record import Author
from flatline.stats import UNKNOWN, Estimate, mean_of_units
from flatline.trace import Trace
from flatline.trace.memo import once
from flatline.trace.settings import is_half
from flatline.trace.tokens import Tokens

UNSURE = -0.05
"""Log-prob below which a token was in doubt: others are near 0 on both sides whatever is wrong."""
ROUNDING = 1e-4
"""Difference that float32 arithmetic explains (healthy: mean 1e-6, largest 2e-4)."""
CLEAN_STARTS = 0.9
"""Share of the rollouts whose first token agrees where prompts are the same. Healthy: all."""
PREFIX = 12
"""Tokens at the start of completions that are compared between rollouts of one prompt."""
FEWEST_FOR_SLOPE = 5
"""Tokens in doubt that a prompt needs to have a slope."""
FEWEST_UNSURE = 20
"""Tokens in doubt that are needed to judge the arithmetic."""
MASK_STEPS = 8
"""Steps in which masks are looked at token by token: all of a long run would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Trained tokens of the model with both log-probs, in order. One entry per token."""

    rollout: np.ndarray
    """Index into `place`."""
    place: Sequence[tuple[int, int]]
    """Step and number of each rollout."""
    row: np.ndarray
    """Row of each rollout in `trace.rollouts`."""
    prompt: np.ndarray
    """Index of the group: the independent unit."""
    turn: np.ndarray
    """Turn of the model, from 0."""
    first_of_turn: np.ndarray
    """Whether it begins a turn."""
    ids: np.ndarray
    """Token ids."""
    sampler: np.ndarray
    """Log-prob when it was sampled."""
    trainer: np.ndarray
    """Log-prob in the pass that is trained through."""
    coarse: bool
    """Whether the run says that it computes in 16 bits."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def gap(self) -> np.ndarray:
        """Trainer minus sampler."""
        return np.asarray(self.trainer - self.sampler)

    @property
    def unsure(self) -> np.ndarray:
        """Tokens that either side had doubts about."""
        return np.asarray(np.minimum(self.sampler, self.trainer) < UNSURE)

    @property
    def exact(self) -> bool:
        """Whether some tokens agree to float32 rounding, so that others cannot blame it."""
        doubt = np.abs(self.gap[self.unsure])
        if self.coarse or len(doubt) < FEWEST_UNSURE:
            return False
        return bool(np.quantile(doubt, 0.1) < ROUNDING)

    @property
    def starts_clean(self) -> bool:
        """Whether first tokens agree to float32 rounding: both sides then have the same prompt."""
        first = np.abs(self.gap[(self.turn == 0) & (self.offset == 0)])
        return (
            not self.coarse and len(first) > 0 and float((first < ROUNDING).mean()) > CLEAN_STARTS
        )

    def mean(self, where: np.ndarray | None = None) -> Estimate:
        """Mean |gap| over prompts."""
        kept = np.ones(len(self), dtype=bool) if where is None else where
        return mean_over(np.abs(self.gap[kept]), self.prompt[kept])

    @property
    def offset(self) -> np.ndarray:
        """Tokens since the first of the turn that are here."""
        at = np.arange(len(self))
        key = self.rollout * (self.turn.max(initial=0) + 1) + self.turn
        starts = np.concatenate([[True], key[1:] != key[:-1]])[: len(self)]
        return at - np.maximum.accumulate(np.where(starts, at, 0))

    def line(self) -> tuple[Estimate, float]:
        """Slope of the trainer's log-prob on the sampler's, over prompts; and the fit's R²."""
        x, y, prompt = (part[self.unsure] for part in (self.sampler, self.trainer, self.prompt))
        slopes = [_slope(x[prompt == one], y[prompt == one]) for one in np.unique(prompt)]
        known = np.array([slope for slope in slopes if slope is not None])
        if not len(known) or len(x) < FEWEST_UNSURE:
            return UNKNOWN, 0.0
        fit = np.corrcoef(x, y)[0, 1] ** 2 if np.ptp(x) and np.ptp(y) else 0.0
        return mean_of_units((known - 1).tolist()), float(fit)

    @property
    def one_sided(self) -> bool:
        """Whether the trainer is never above the sampler: its distribution has tokens more."""
        doubt = self.gap[self.unsure]
        return len(doubt) >= FEWEST_UNSURE and bool((doubt <= 2 * ROUNDING).mean() > 0.999)

    def example(self, trace: Trace, token: int) -> Evidence:
        """One token with what comes before it."""
        same = self.rollout[max(token - 4, 0) : token] == self.rollout[token]
        before = self.ids[max(token - 4, 0) : token][same]
        step, number = self.place[self.rollout[token]]
        return Evidence(
            text=f"{trace.decode(before)!r} then {trace.text(self.ids[token])!r}: sampler "
            f"{self.sampler[token]:.3f}, trainer {self.trainer[token]:.3f}",
            step=step,
            rollout=number,
        )

    def worst(self, trace: Trace, where: np.ndarray, n: int = 3) -> list[Evidence]:
        """The tokens with the largest gaps, one per rollout."""
        order = np.flatnonzero(where)[np.argsort(-np.abs(self.gap[where]), kind="stable")]
        _, first = np.unique(self.rollout[order], return_index=True)
        return [self.example(trace, int(token)) for token in order[np.sort(first)[:n]]]


def recorded(trace: Trace, steps: Collection[int] | None) -> Gaps:
    """The gaps of some recorded steps."""
    tokens = trace.tokens(steps)
    sampler, trainer = tokens.sampler.astype(float), _when_sampled(trace, tokens).astype(float)
    kept = tokens.trained & (tokens.author == Author.MODEL)
    kept &= np.isfinite(sampler) & np.isfinite(trainer)
    rows = tokens.rollout_rows
    step, number = (trace.rollouts[name][rows].astype(int) for name in ("step", "rollout"))
    return Gaps(
        rollout=tokens.row[kept],
        place=list(zip(step.tolist(), number.tolist(), strict=True)),
        row=rows,
        prompt=trace.groups().index[rows][tokens.row[kept]],
        turn=tokens.turn[kept],
        first_of_turn=tokens.first_of_turn[kept],
        ids=tokens.ids[kept],
        sampler=sampler[kept],
        trainer=trainer[kept],
        coarse=bool(is_half(trace.settings)),
    )


def _when_sampled(trace: Trace, tokens: Tokens) -> np.ndarray:
    """The trainer's log-probs with the weights that sampled. Where a generation serves several
    optimizer steps, its later rollouts are trained after an update; TRL then scores all of them
    beforehand."""
    if not trains_later(trace.settings):
        return tokens.trainer
    try:
        old = tokens.old
    except NotRecorded:
        return tokens.trainer
    return np.where(np.isfinite(old), old, tokens.trainer)


@once
def at_equal_weights(trace: Trace) -> Gaps:
    """The gaps of the first step, before any update."""
    steps = trace.token_steps
    if not len(steps) or int(steps[0]) > 1:
        raise NotRecorded("tokens of step 1")
    return recorded(trace, [int(steps[0])])


AS_AT_FIRST = 3.0
"""Times the gap of the first step: what is no further from the start has its weights."""


@once
def never_left_the_start(trace: Trace) -> str | None:
    """That the sampler still has the weights of the start in the last recorded steps, in words;
    None where it is not so, or unknown. A cache that is old, or weights that come late, are
    not the start."""
    steps = [int(step) for step in trace.token_steps if step > 1][-3:]
    if not steps:
        return None
    for look in (_as_the_reference, _as_at_the_first_step):
        try:
            words = look(trace, steps)
        except NotRecorded:
            continue
        if words is not None:
            return words
    return None


def _as_the_reference(trace: Trace, steps: list[int]) -> str | None:
    gaps, tokens = recorded(trace, steps), trace.tokens(steps)
    away = np.abs(tokens.sampler.astype(float) - tokens.reference.astype(float))
    known = away[tokens.trained & (tokens.author == Author.MODEL) & np.isfinite(away)]
    if not _stays(trace, known, np.abs(gaps.gap)):
        return None
    return f"its log-probs are those of the reference to {known.mean():.2g} nat"


def _as_at_the_first_step(trace: Trace, steps: list[int]) -> str | None:
    """The same token after the same ones, behind the same prompt."""
    first = beginnings(trace, [int(trace.token_steps[0])], "sampler")
    then = {place[1:]: np.mean(values) for place, values in first.items()}
    now, trainers = (beginnings(trace, steps, side) for side in ("sampler", "trainer"))
    both = [place for place in now if place[1:] in then]
    away = np.array([np.mean(now[place]) - then[place[1:]] for place in both])
    left = np.array([np.mean(trainers[place]) - np.mean(now[place]) for place in both])
    if len(both) < FEWEST_UNSURE or not _stays(trace, np.abs(away), np.abs(left)):
        return None
    return (
        f"{len(both)} tokens that came again after the same text have its log-probs of the first "
        f"step to {np.abs(away).mean():.2g} nat"
    )


def _stays(trace: Trace, away: np.ndarray, left: np.ndarray) -> bool:
    """Whether the sampler is no further from the start than rounding, and the trainer is."""
    near = AS_AT_FIRST * at_equal_weights(trace).mean().value
    away, left = away[np.isfinite(away)], left[np.isfinite(left)]
    if not len(away) or not len(left):
        return False
    return bool(away.mean() <= near < left.mean() / AS_AT_FIRST)


def mean_over(values: np.ndarray, clusters: np.ndarray) -> Estimate:
    """Mean over clusters of the mean inside each, with a t interval; `n` counts clusters."""
    if not len(values):
        return UNKNOWN
    _, index = np.unique(clusters, return_inverse=True)
    means = np.bincount(index, weights=values) / np.bincount(index)
    return mean_of_units(means.tolist())


def some_steps(trace: Trace, most: int = 3) -> list[int]:
    """A few of the steps with token detail, the first and the last among them."""
    steps = trace.token_steps
    chosen = np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int)
    return [int(steps[i]) for i in np.unique(chosen)]


def prefix_spread(trace: Trace, steps: Collection[int]) -> Estimate:
    """How much the trainer's log-probs differ where rollouts of a prompt begin alike, by prompt.

    The same tokens after the same prompt have one log-prob, from one set of weights. Nothing is
    known where no two rollouts of a prompt begin alike.
    """
    found = beginnings(trace, steps, of_one_set_of_weights(trace))
    known = {place: np.array(values)[np.isfinite(values)] for place, values in found.items()}
    spreads = {place: float(np.ptp(values)) for place, values in known.items() if len(values) > 1}
    prompts = np.array([b"%d " % step + prompt for step, prompt, _ in spreads])
    return mean_over(np.array(list(spreads.values())), prompts)


def of_one_set_of_weights(trace: Trace) -> str:
    """The column with the trainer's log-probs of a generation: where some rollouts are trained
    after an update, those that were taken beforehand."""
    return "old" if trains_later(trace.settings) else "trainer"


Place = tuple[int, bytes, tuple[int, ...]]
"""A step, a prompt, and the tokens of a completion up to one."""


def beginnings(trace: Trace, steps: Collection[int], side: str) -> dict[Place, list[float]]:
    """Log-probs of the first tokens of completions, together where the text so far is the same; no
    token where no prompt is known. Rollouts without loss are left out: what the trainer computes
    for those is not used, and TRL hides their completions from the model."""
    tokens = trace.tokens(steps)
    prompts = prompts_of_rows(tokens)
    if prompts is None:
        return {}
    found: dict[Place, list[float]] = {}
    early = np.flatnonzero((tokens.position < PREFIX) & _with_loss(tokens)[tokens.row])
    for row, part in itertools.groupby(early, key=lambda token: tokens.row[token]):
        where = list(part)
        ids, values = tokens.ids[where].tolist(), getattr(tokens, side)[where].tolist()
        step = int(trace.rollouts["step"][tokens.rollout_rows[row]])
        for length, value in enumerate(values, start=1):
            place = (step, prompts[row].tobytes(), tuple(ids[:length]))
            found.setdefault(place, []).append(value)
    return found


def prompts_of_rows(tokens: Tokens) -> list[np.ndarray] | None:
    """Ids of each rollout's prompt; None where they were not recorded."""
    try:
        ids, row = tokens.prompt_ids, tokens.prompt_row
    except NotRecorded:
        return None
    sizes = np.bincount(row, minlength=len(tokens.rollout_rows))
    return np.split(ids, np.cumsum(sizes)[:-1]) if len(ids) else None


def _with_loss(tokens: Tokens) -> np.ndarray:
    """Rollouts that have trained tokens; all of them where that is not known."""
    rows = len(tokens.rollout_rows)
    try:
        return np.asarray(np.bincount(tokens.row[tokens.trained], minlength=rows) > 0)
    except NotRecorded:
        return np.ones(rows, dtype=bool)


def _slope(x: np.ndarray, y: np.ndarray) -> float | None:
    if len(x) < FEWEST_FOR_SLOPE or np.ptp(x) < 0.1:
        return None
    centred = x - x.mean()
    return float((centred * (y - y.mean())).sum() / (centred**2).sum())
