"""The row of one step: what verl logged of it, and what its rollouts say."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatline.live.verl.rows import Rollout, Row
from flatline.trace.importers.resolve import resolve
from flatline.trace.importers.steps import left_out


def logged(metrics: Mapping[str, Any]) -> Row:
    """Columns by the names that an imported log has them under, and all numbers."""
    numbers = {n: float(v) for n, v in metrics.items() if isinstance(v, int | float | np.number)}
    aliases = resolve(numbers, leave_out=left_out(numbers)).aliases
    return {**{column: numbers[name] for column, name in aliases.items()}, "metrics": numbers}


def measured(rollouts: Sequence[Rollout], rows: Sequence[Row]) -> Row:
    """From the rollouts themselves."""
    if not rollouts:
        return {}
    rewards = _by_group(rows)
    facts: Row = {
        "reward": float(np.mean([one.reward for one in rollouts])),
        "reward_std_within": _mean([float(np.std(g, ddof=1)) for g in rewards if len(g) > 1]),
        "zero_std_share": float(np.mean([np.ptp(group) < 1e-6 for group in rewards])),
        "advantage_max": _max([abs(one.advantage) for one in rollouts if one.advantage]),
        "truncated_share": float(np.mean([row["finish"] == "length" for row in rows])),
    }
    gaps = _over_trained(rollouts, lambda one: one.sampler)
    far = _over_trained(rollouts, lambda one: one._tokens("ref_log_prob"))
    ratio = _over_trained(rollouts, lambda one: one._tokens("old_log_probs"))
    kl = np.exp(far) - far - 1
    facts |= {"logprob_gap": _mean(np.abs(gaps)), "logprob_gap_max": _max(np.abs(gaps))}
    facts |= {"kl": _mean(kl), "kl_max": _max(kl), "ratio_max": _max(np.abs(ratio))}
    return {name: value for name, value in facts.items() if value is not None}


def _over_trained(rollouts: Sequence[Rollout], of: Any) -> np.ndarray:
    """What something gives to trained tokens beyond the trainer's log-probs."""
    found = []
    for one in rollouts:
        other = of(one)
        if one.heard is not None and other is not None:
            found.append((other - one.heard["logps"])[one.trained != 0])
    far = np.concatenate(found) if found else np.array([])
    return np.asarray(far[~np.isnan(far)])


def _by_group(rows: Sequence[Row]) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row["reward"])
    return list(groups.values())


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _max(values: Any) -> float | None:
    return float(np.max(values)) if len(values) else None
