"""The table `steps`: what one optimizer step trained on and what it did.

Rewards are those of all processes. What needs tokens (KL, ratios, log-prob gaps, lengths) is of
process 0; the tokens of the others are in the table `tokens`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.live.batch import Padded, to_numpy
from flatline.live.trl.recorder.heard import Generation, Pass
from flatline.live.trl.recorder.rows import ENDED, Reader, Row, total_reward

OLD = "old_logps"
"""RLOO's old log-prob of each completion."""


def reward_facts(generations: Sequence[Generation], reader: Reader) -> Row:
    """From raw rewards: TRL's own `reward_std` cannot tell dead groups from live ones."""
    known = [to_numpy(g.rewards) for g in generations if g.rewards is not None]
    if not known:
        return {}
    total = np.concatenate([total_reward(rewards, reader.reward_weights) for rewards in known])
    facts: Row = {"reward": _mean(_known(total))}
    if len(total) % reader.group_size == 0 and reader.group_size > 1:
        groups = [_known(group) for group in total.reshape(-1, reader.group_size)]
        stds = [float(group.std(ddof=1)) for group in groups if len(group) > 1]
        facts["reward_std_within"] = _mean(np.array(stds))
        # Sums of float32 parts may differ in their last bit where the rewards are equal.
        dead = [not len(group) or np.ptp(group) < 1e-6 for group in groups]
        facts["zero_std_share"] = float(np.mean(dead))
    return facts


def rollout_facts(rows: Sequence[Row]) -> Row:
    """From the rollouts of process 0."""
    if not rows:
        return {}
    ends = [row["finish"] for row in rows if row["finish"] is not None]
    advantages = [row["advantage"] for row in rows]
    return {
        "advantage_max": _max(np.abs([one for one in advantages if one is not None])),
        "completion_length": float(np.mean([row["completion_tokens"] for row in rows])),
        "truncated_share": _mean(np.array([end not in ENDED for end in ends])),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Where the loss clips the ratio of new to old probability."""

    low: float
    """Below 1 by so much."""
    high: float
    """Above 1 by so much."""
    by_sequence: bool = False
    """Whether all tokens of a completion have one ratio: the mean of theirs, in logs (GSPO), or all
    of them together, where the batch has one old log-prob for each completion (RLOO)."""


class PassFacts:
    """Sums over the trained tokens of a step's passes."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._values: dict[str, list[np.ndarray]] = {}
        self._losses: list[float] = []

    def add(
        self, one: Pass, batch: Padded, logps: np.ndarray | None, sampler: np.ndarray | None
    ) -> None:
        """`logps` are the trainer's, `sampler` those of the sampler, NaN where it gave none."""
        if one.loss is not None:
            self._losses.append(float(one.loss))
        if logps is None:
            return
        mask = batch.loss_mask
        new = logps[mask]
        if "ref_per_token_logps" in batch:
            far = batch["ref_per_token_logps"][mask] - new
            self._keep("kl", np.exp(far) - far - 1)
        if sampler is not None:
            gap = np.abs(sampler[mask] - new)
            # vLLM has no log-prob for some tokens; a trainer's NaN must stay to be seen.
            self._keep("gap", gap[~np.isnan(sampler[mask])])
        if one.entropies is not None:
            self._keep("entropy", to_numpy(one.entropies)[mask])
        self._ratios(batch, mask, new)

    def row(self) -> Row:
        """Means and largest values."""
        found = {name: np.concatenate(values) for name, values in self._values.items()}
        facts: Row = {"loss": sum(self._losses) if self._losses else None}
        for name, into in (("kl", "kl"), ("gap", "logprob_gap"), ("entropy", "entropy")):
            if name in found:
                facts[into] = _mean(found[name])
        for name, into in (("kl", "kl_max"), ("gap", "logprob_gap_max"), ("ratio", "ratio_max")):
            if name in found:
                facts[into] = _max(found[name])
        if "clipped" in found:
            facts["clip_share"] = _mean(found["clipped"])
        return facts

    def _ratios(self, batch: Padded, mask: np.ndarray, new: np.ndarray) -> None:
        """Where TRL has no older log-probs it compares the pass with itself."""
        old = batch["old_per_token_logps"][mask] if "old_per_token_logps" in batch else new
        log_ratio = _together(mask, new, batch[OLD]) if OLD in batch else new - old
        self._keep("ratio", np.abs(log_ratio))
        sign = np.sign(batch.token_advantage[mask])
        if self._clip.by_sequence:
            log_ratio, sign = _by_row(mask, log_ratio, sign)
        ratio = np.exp(log_ratio)
        low, high = 1 - self._clip.low, 1 + self._clip.high
        clipped = (ratio < low) & (sign < 0) | (ratio > high) & (sign > 0)
        self._keep("clipped", clipped.astype(np.float64))

    def _keep(self, name: str, values: np.ndarray) -> None:
        self._values.setdefault(name, []).append(values)


def logged_facts(logs: Mapping[str, Any], steps: int, names: Sequence[str]) -> Row:
    """What one line of the trainer's log adds: some columns, by their names, and all its metrics; a
    line over several steps only the latter."""
    metrics = {n: float(v) for n, v in logs.items() if isinstance(v, int | float)}
    facts: Row = {"metrics": metrics}
    if steps == 1:
        facts |= {name: metrics[name] for name in names if name in metrics}
    return facts


def heldout_reward(logs: Mapping[str, Any], *, sets: Sequence[str] = ()) -> float | None:
    """Held-out reward in a log line: of flatline's own evaluation, else of TRL's.

    TRL logs the reward of each of its `sets` under one name; none of several is *the* reward.
    """
    found = logs.get("eval_combined", None if len(sets) > 1 else logs.get("eval_reward"))
    return None if found is None else float(found)


def _together(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """At each trained token the log-ratio of its whole completion."""
    row = np.nonzero(mask)[0]
    return np.asarray((np.bincount(row, new, minlength=len(mask)) - old)[row])


def _by_row(
    mask: np.ndarray, log_ratio: np.ndarray, sign: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One log-ratio and one sign for every completion that has trained tokens."""
    tokens = mask.sum(1)[mask.any(1)]
    first = np.cumsum(tokens) - tokens
    return np.add.reduceat(log_ratio.astype(np.float64), first) / tokens, sign[first]


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _max(values: np.ndarray) -> float | None:
    return float(values.max()) if len(values) else None


def _known(values: np.ndarray) -> np.ndarray:
    known: np.ndarray = values[~np.isnan(values)]
    return known
