"""What the table of weights says, and which weights rollouts name. For several hypotheses."""

import numpy as np

from flatline.hypotheses.groups import EQUAL
from flatline.trace import Trace
from flatline.trace.frames import Frame

FEWEST_STEPS = 2
"""Steps that must agree: a gradient scaler may skip one step of a healthy run."""
HALF = ("bfloat16", "float16", "torch.bfloat16", "torch.float16")
"""Precisions in which an update may be rounded away."""


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


def always(names: np.ndarray, where: np.ndarray, what: np.ndarray) -> set[str]:
    """Tensors for which `what` holds at all of at least `FEWEST_STEPS` steps in `where`."""
    known, index = np.unique(names[where].astype(str), return_inverse=True)
    times = np.bincount(index, minlength=len(known))
    held = np.bincount(index, what[where], minlength=len(known))
    return {str(name) for name in known[(times >= FEWEST_STEPS) & (held == times)]}


def sizes(table: Frame) -> dict[str, float]:
    size = table["size"] if "size" in table else np.ones(len(table))
    return dict(zip(map(str, table["name"]), np.nan_to_num(size, nan=1.0).tolist(), strict=True))


def in_half(table: Frame) -> dict[str, bool]:
    dtype = table["dtype"] if "dtype" in table else np.full(len(table), None)
    return {str(name): kind in HALF for name, kind in zip(table["name"], dtype, strict=True)}


def share_of(names: set[str], size: dict[str, float]) -> float:
    return sum(size[name] for name in names) / max(sum(size.values()), 1.0)


def weights_move(trace: Trace) -> bool:
    """Whether any trained tensor ever changed, where that was recorded; if none did, it is H26."""
    recorded = len(trace.weights) > 0 and "update_norm" in trace.weights
    return not recorded or bool(np.nanmax(trace.weights["update_norm"]) > 0)


def allowed_lag(trace: Trace) -> float:
    """Steps by which a rollout may be behind because one generation serves several updates."""
    passes = trace.settings.get("gradient_accumulation_steps") or 1
    return max(0.0, (trace.settings.get("steps_per_generation") or passes) / passes - 1)


def names_newest(trace: Trace, step: int) -> bool:
    """Whether the rollouts of a step name the weights that the step starts from, or none."""
    if "weight_version" not in trace.rollouts:
        return allowed_lag(trace) == 0
    version = trace.rollouts["weight_version"][trace.rollouts["step"] == step]
    return bool(np.all((version == step - 1) | np.isnan(version)))
