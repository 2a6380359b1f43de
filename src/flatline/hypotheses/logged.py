"""Metrics that TRL logs, beside what the recording of the same step allows them to be.

Releases average in different ways, over tokens or completions, over a step or its passes. A metric
is held against the range of all of them, and only where its name means one thing: what was asked
for decides that. Rounding widens a range and nothing else does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.trace import Trace

CLOSE = 1e-3
"""Of a number: what sums of float32 in another order, or of a longer log line, differ by."""
TINY = 1e-6
"""And beside it, where the number is near 0."""
HALF = 2**-5
"""The same of what is summed in 16 bits; 0 cannot be told from less than half of it."""
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "rloo")
"""Losses with PPO's clip: the others log it under another name, or none."""
ENDS = frozenset(("eos", "length", "stop"))
"""How a completion ends that TRL's own sampler wrote."""

Range = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Steps, the least and the largest number that an honest log shows at each."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One metric at the steps that have it."""

    name: str
    step: np.ndarray
    logged: np.ndarray
    least: np.ndarray
    most: np.ndarray
    due: int
    """Steps that ought to have it."""

    @property
    def off(self) -> np.ndarray:
        """How far outside of its range each number is."""
        beyond = np.maximum(self.least - self.logged, self.logged - self.most)
        return np.asarray(np.maximum(beyond, 0.0))


def logged_beside(trace: Trace) -> Iterator[Logged]:
    """Every metric that was logged and can be told, widened by rounding."""
    if trace.run.get("source") != "attach":
        return
    for names, found in _ranges(trace):
        name = next((one for one in names if one in trace.metric_names), None)
        if name is None:
            continue
        step, least, most = found
        told = dict(zip(trace.steps["step"].tolist(), trace.metric(name).tolist(), strict=True))
        logged = np.array([told.get(one, np.nan) for one in step.tolist()])
        known = np.isfinite(logged) & np.isfinite(least) & np.isfinite(most)
        slack, floor = (HALF, HALF / 2) if _coarse(trace, name) else (CLOSE, TINY)
        yield Logged(
            name,
            step[known],
            logged[known],
            (least - slack * np.abs(least) - floor)[known],
            (most + slack * np.abs(most) + floor)[known],
            due=int(np.isfinite(least).sum()),
        )


def _coarse(trace: Trace, name: str) -> bool:
    """Whether it is a mean of numbers of 16 bits."""
    return name in ("kl", "entropy") and trace.settings.get("precision") in ("bfloat16", "float16")


def _ranges(trace: Trace) -> Iterator[tuple[tuple[str, ...], Range]]:
    """By the names that releases have for it."""
    for names, (column, where) in _OF_PASSES.items():
        if where(trace.settings) and _one_process(trace.settings) and _own_words(trace):
            found = _of_passes(trace, column)
            if found is not None:
                yield names, found
    for names, (measure, where) in _OF_ROLLOUTS.items():
        if where(trace.settings) and _own_words(trace):
            yield names, _by_step(trace, measure)
    if trace.settings.get("reward_weights"):  # else two functions have one name
        for name, part in trace.parts().items():
            yield (f"rewards/{name}/mean", f"rewards/{name}"), _by_step(trace, _mean_of(part))


def _of_passes(trace: Trace, column: str) -> Range | None:
    """As the recorder took it from every pass of a step."""
    if f"{column}_least" not in trace.steps:
        return None
    least, most = trace.steps[f"{column}_least"], trace.steps[f"{column}_most"]
    return trace.steps["step"], least, most


Measure = Callable[[Trace, np.ndarray], tuple[float, float]]
"""The least and the largest of one step, of its rows."""


def _by_step(trace: Trace, measure: Measure) -> Range:
    order = np.argsort(trace.rollouts["step"], kind="stable")
    steps, first = np.unique(trace.rollouts["step"][order], return_index=True)
    found = np.array([measure(trace, rows) for rows in np.split(order, first[1:])])
    return steps, found[:, 0], found[:, 1]


def _mean_of(values: np.ndarray) -> Measure:
    def measure(trace: Trace, rows: np.ndarray) -> tuple[float, float]:
        known = values[rows][np.isfinite(values[rows])]
        told = len(known) == len(rows) or (len(known) and one_generation(trace.settings))
        mean = float(known.mean()) if told else np.nan
        return mean, mean

    return measure


def _length(reduce: Callable[[np.ndarray], Any]) -> Measure:
    def measure(trace: Trace, rows: np.ndarray) -> tuple[float, float]:
        found = float(reduce(trace.rollouts["completion_tokens"][rows]))
        return found, found

    return measure


def _cut(trace: Trace, rows: np.ndarray) -> tuple[float, float]:
    """TRL counts what ended on a stop string as cut, and what ended on padding as whole: both are
    recorded as `stop`."""
    finish = trace.rollouts["finish"][rows]
    if not ENDS.issuperset(finish.tolist()):
        return np.nan, np.nan
    return float((finish == "length").mean()), float((finish != "eos").mean())


def _spread(trace: Trace, rows: np.ndarray) -> tuple[float, float]:
    """Of the whole batch, or the mean over its groups: both are called `reward_std`."""
    paid_PG = _grouped(trace, rows)
    if paid_PG is None:
        return np.nan, np.nan
    both = float(paid_PG.std(ddof=1)), float(paid_PG.std(axis=1, ddof=1).mean())
    return min(both), max(both)


def _dead(trace: Trace, rows: np.ndarray) -> tuple[float, float]:
    """Groups whose rewards are all alike. Where these are no whole numbers, the rounding of their
    mean may make a spread of nothing."""
    paid_PG = _grouped(trace, rows)
    if paid_PG is None:
        return np.nan, np.nan
    apart_P, whole_P = np.ptp(paid_PG, axis=1), (paid_PG == np.rint(paid_PG)).all(axis=1)
    return float(((apart_P == 0) & whole_P).mean()), float((apart_P < TINY).mean())


def _grouped(trace: Trace, rows: np.ndarray) -> np.ndarray | None:
    """Rewards of a step by group; None where groups are not whole or a row has no reward."""
    size = int(trace.settings.get("num_generations") or 0)
    paid = trace.rollouts["reward"][rows[np.argsort(trace.rollouts["rollout"][rows])]]
    if size < 2 or len(rows) % size or not np.isfinite(paid).all():
        return None
    return np.asarray(paid.reshape(-1, size))


# -- where a name means one thing


def _one_process(given: Mapping[str, Any]) -> bool:
    """What needs tokens is recorded of process 0 alone, and logged of all."""
    return given.get("world_size") in (None, 1)


def _own_words(trace: Trace) -> bool:
    """Whether the model wrote all of every completion: else releases differ in what they count."""
    table = trace.rollouts
    if trace.settings.get("tools") != 0 or "model_tokens" not in table:
        return trace.settings.get("tools") == 0
    return bool(np.all(table["model_tokens"] == table["completion_tokens"]))


def _clips(given: Mapping[str, Any]) -> bool:
    """Releases before 0.17 have one loss, and no name for it."""
    return _plain(given) and given.get("loss_type") in (None, *CLIPPED)


def _kl_in_loss(given: Mapping[str, Any]) -> bool:
    return given.get("algorithm") == "grpo" and bool(given.get("beta"))


def _plain(given: Mapping[str, Any]) -> bool:
    return given.get("algorithm") in ("grpo", "rloo")


def _unmasked(given: Mapping[str, Any]) -> bool:
    """Older releases count no token of a completion that carries no loss."""
    return _plain(given) and not given.get("mask_truncated_completions")


def one_generation(given: Mapping[str, Any]) -> bool:
    """In each step. Of several, the mean of their extremes is logged, of their spreads, and of the
    means of what is known of each."""
    passes = int(given.get("gradient_accumulation_steps") or 1)
    return int(given.get("steps_per_generation") or 1) >= passes


def _alone(given: Mapping[str, Any]) -> bool:
    return _unmasked(given) and one_generation(given)


def _grouped_rewards(given: Mapping[str, Any]) -> bool:
    """Rewards are summed before they are compared in their group. RLOO's have a KL and a range in
    them."""
    summed = given.get("multi_objective_aggregation") in (None, "sum_then_normalize")
    by_group = str(given.get("scale_rewards")) != "batch"
    grpo = given.get("algorithm") == "grpo"
    return grpo and summed and by_group and one_generation(given)


_Where = Callable[[Mapping[str, Any]], bool]
_OF_PASSES: Mapping[tuple[str, ...], tuple[str, _Where]] = {
    ("clip_ratio/region_mean", "clip_ratio"): ("clip", _clips),
    ("kl",): ("kl", _kl_in_loss),
    ("entropy",): ("entropy", _plain),
}
_OF_ROLLOUTS: Mapping[tuple[str, ...], tuple[Measure, _Where]] = {
    ("completions/mean_length", "completion_length"): (_length(np.mean), _unmasked),
    ("completions/min_length",): (_length(np.min), _alone),
    ("completions/max_length",): (_length(np.max), _alone),
    ("completions/clipped_ratio",): (_cut, _unmasked),
    ("reward_std",): (_spread, _grouped_rewards),
    ("frac_reward_zero_std",): (_dead, _grouped_rewards),
}
