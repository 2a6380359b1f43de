"""What the table of weights says, and which weights rollouts name. For several hypotheses."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatline.hypotheses.groups import EQUAL
from flatline.trace import Trace
from flatline.trace.frames import Frame

FEWEST_STEPS = 2
"""Steps that must agree: a gradient scaler may skip one step of a healthy run."""
HALF = ("bfloat16", "float16", "torch.bfloat16", "torch.float16")
"""Precisions in which an update may be rounded away."""
SECOND_HALVES = ("lora_B", "lora_embedding_B")
"""Weights of an adapter that start at 0, so that it changes nothing at first."""
OF_ITS_STEP = 1.5
"""Norm after the first step, in units of that step, of a weight that started at 0. It is 1, but
the step of a large weight is estimated from a sample."""


def active_steps(trace: Trace) -> np.ndarray:
    """Steps that had something to learn from and a rate to learn it with."""
    steps = np.unique(trace.weights["step"])
    if "learning_rate" in trace.steps:
        rate = trace.steps["learning_rate"]
        steps = steps[~np.isin(steps, trace.steps["step"][rate == 0])]
    if "advantage" in trace.rollouts:
        told = np.abs(trace.rollouts["advantage"]) > EQUAL
        if "trained_tokens" in trace.rollouts:
            told &= trace.rollouts["trained_tokens"] > 0
        at = trace.rollouts["step"]
        # With several passes over one generation only the first step names its rollouts.
        steps = steps[np.isin(steps, at[told]) | ~np.isin(steps, at)]
    return steps


def looked_at(table: Frame) -> np.ndarray:
    """A process that holds no part of a sharded tensor has seen nothing of it."""
    return table["sampled"] > 0 if "sampled" in table else np.ones(len(table), dtype=bool)


def always(table: Frame, where: np.ndarray, what: np.ndarray) -> set[str]:
    """Tensors for which `what` holds at all of at least `FEWEST_STEPS` steps in `where`."""
    names, index = table.coded("name")
    times = np.bincount(index[where], minlength=len(names))
    held = np.bincount(index[where], what[where], minlength=len(names))
    return {str(names[at]) for at in np.flatnonzero((times >= FEWEST_STEPS) & (held == times))}


def sizes(table: Frame) -> dict[str, float]:
    """Elements of each tensor, as its last row says."""
    names, last = _last_rows(table)
    size = table["size"] if "size" in table else np.ones(len(table))
    return dict(zip(names, np.nan_to_num(size[last], nan=1.0).tolist(), strict=True))


def in_half(table: Frame) -> dict[str, bool]:
    """Whether each tensor is in a coarse precision, as its last row says."""
    names, last = _last_rows(table)
    if "dtype" not in table:
        return dict.fromkeys(names, False)
    kinds, index = table.coded("dtype")
    return {name: kinds[at] in HALF for name, at in zip(names, index[last].tolist(), strict=True)}


def _last_rows(table: Frame) -> tuple[list[str], np.ndarray]:
    names, index = table.coded("name")
    last = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(last, index, np.arange(len(index)))
    return [str(name) for name in names], last


def share_of(names: set[str], size: dict[str, float]) -> float:
    return sum(size[name] for name in names) / max(sum(size.values()), 1.0)


def weights_move(trace: Trace) -> bool:
    """Whether any trained tensor ever changed, where that was recorded; if none did, it is H26."""
    moved = trace.weights["update_norm"] if "update_norm" in trace.weights else np.zeros(0)
    moved = moved[np.isfinite(moved)]
    return not len(moved) or bool(moved.max() > 0)


def allowed_lag(trace: Trace) -> float:
    """Steps by which a rollout may be behind: one generation serves several updates, or was asked
    to be made ahead of its turn."""
    return _lag(trace.settings) + float(trace.settings.get("batches_ahead") or 0)


def trains_later(settings: Mapping[str, Any]) -> bool:
    """Whether some rollouts wait for another optimizer step than the next."""
    passes = settings.get("gradient_accumulation_steps") or 1
    return bool(passes % (settings.get("steps_per_generation") or passes))


def updates_once(settings: Mapping[str, Any]) -> bool:
    """Whether a generation serves one update, so that the ratio to the older policy is 1."""
    return (settings.get("num_iterations") or 1) == 1 and _lag(settings) == 0


def kl_in_reward(settings: Mapping[str, Any]) -> bool:
    """Whether the distance from the reference is taken off the reward, as RLOO has it: no term of
    the loss pulls then, and advantages are not those of the recorded rewards alone."""
    return settings.get("algorithm") == "rloo"


def updates_of_a_generation(settings: Mapping[str, Any]) -> float:
    """Optimizer steps that one generation of completions serves."""
    return float((settings.get("num_iterations") or 1) * (_lag(settings) + 1))


def _lag(settings: Mapping[str, Any]) -> float:
    passes = settings.get("gradient_accumulation_steps") or 1
    return float(max(0.0, (settings.get("steps_per_generation") or passes) / passes - 1))


def adapter_started_at_zero(trace: Trace) -> bool:
    """Whether every B is, after the first step, no larger than that step; False where unknown."""
    table = trace.weights
    if "norm" not in table or "update_norm" not in table:
        return False
    names, index = table.coded("name")
    second = np.array([any(half in str(name) for half in SECOND_HALVES) for name in names])
    rows = second[index] & (table["step"] == 1) & looked_at(table)
    small = table["norm"][rows] <= OF_ITS_STEP * table["update_norm"][rows]
    return bool(small.size) and bool(small.all())


def names_newest(trace: Trace, steps: np.ndarray) -> np.ndarray:
    """Whether the rollouts of each step name the weights that the step starts from, or none."""
    if "weight_version" not in trace.rollouts:
        return np.full(len(steps), allowed_lag(trace) == 0)
    at, version = trace.rollouts["step"], trace.rollouts["weight_version"]
    return ~np.isin(steps, at[~((version == at - 1) | np.isnan(version))])
