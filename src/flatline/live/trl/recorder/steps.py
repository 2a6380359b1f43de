"""The table `steps`: what one optimizer step trained on and what it did.

Rewards are those of all processes. What needs tokens (KL, ratios, log-prob gaps, lengths) is of
process 0; the tokens of the others are in the table `tokens`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flatline.live.batch import Padded, to_numpy
from flatline.live.trl.recorder.heard import HELD_OUT, ROLLOUT, Generation, Pass
from flatline.live.trl.recorder.readings import Readings
from flatline.live.trl.recorder.rows import ENDED, Reader, Row, total_reward

OLD = "old_logps"
"""RLOO's old log-prob of each completion."""
ROUNDED = 2**-7
"""Of a log-ratio, bf16's last bit: so near to a bound, rounding decides whether it is clipped."""


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
        self._heldout: list[int] = []
        """Rows of each pass that an evaluation sampled."""
        self._least: dict[str, Readings] = {}
        self._most: dict[str, Readings] = {}
        """What a log of the step may show, of the smallest and the largest that rounding makes."""
        self.whole = True
        """Whether every pass of the step was heard."""

    def add(
        self, one: Pass, batch: Padded, logps: np.ndarray | None, sampler: np.ndarray | None
    ) -> None:
        """`logps` are the trainer's, `sampler` those of the sampler, NaN where it gave none."""
        if one.loss is not None:
            self._losses.append(float(one.loss))
        if ROLLOUT in one.inputs:
            self._heldout.append(int((to_numpy(one.inputs[ROLLOUT]) == HELD_OUT).sum()))
        if logps is None:
            self.whole = False
            return
        mask = batch.loss_mask
        row_T, rows = np.nonzero(mask)[0], len(mask)
        new = logps[mask]
        log_ratio = _log_ratio(batch, mask, new)
        if "ref_per_token_logps" in batch:
            far = batch["ref_per_token_logps"][mask] - new
            kl = np.exp(far) - far - 1
            self._keep("kl", kl)
            corrected = kl * np.exp(log_ratio)  # as `use_bias_correction_kl` asks, and logs
            self._read("kl", row_T, rows, np.minimum(kl, corrected), np.maximum(kl, corrected))
        if sampler is not None:
            drawn = sampler[mask]
            # vLLM has no log-prob for some tokens; a trainer's NaN must stay to be seen.
            self._keep("gap", np.abs(drawn - new)[~np.isnan(drawn)])
        if one.entropies is not None:
            entropy = to_numpy(one.entropies)[mask]
            self._keep("entropy", entropy)
            self._read("entropy", row_T, rows, entropy, entropy)
        self._ratios(log_ratio, np.sign(batch.token_advantage[mask]), row_T, rows)

    def row(self) -> Row:
        """Means and largest values."""
        found = {name: np.concatenate(values) for name, values in self._values.items()}
        facts: Row = {"loss": sum(self._losses) if self._losses else None}
        facts["heldout_rows"] = sum(self._heldout) if self._heldout else None
        for name, into in (("kl", "kl"), ("gap", "logprob_gap"), ("entropy", "entropy")):
            if name in found:
                facts[into] = _mean(found[name])
        for name, into in (("kl", "kl_max"), ("gap", "logprob_gap_max"), ("ratio", "ratio_max")):
            if name in found:
                facts[into] = _max(found[name])
        if "clipped" in found:
            facts["clip_share"] = _mean(found["clipped"])
        return facts | (self._readings() if self.whole else {})

    def _ratios(
        self, log_ratio: np.ndarray, sign: np.ndarray, row_T: np.ndarray, rows: int
    ) -> None:
        self._keep("ratio", np.abs(log_ratio))
        whole = self._clip.by_sequence
        if whole:
            count_R = np.maximum(np.bincount(row_T, minlength=rows), 1)
            sum_R = np.bincount(row_T, log_ratio.astype(np.float64), minlength=rows)
            log_ratio = (sum_R / count_R)[row_T]
        ratio = np.exp(log_ratio)
        clipped = self._clipped(ratio, sign)
        self._keep("clipped", clipped[np.diff(row_T, prepend=-1) > 0] if whole else clipped)
        surely, perhaps = (self._clipped(ratio, sign, by) for by in (ROUNDED, -ROUNDED))
        self._read("clip", row_T, rows, surely, perhaps)

    def _clipped(self, ratio: np.ndarray, sign: np.ndarray, by: float = 0.0) -> np.ndarray:
        """1 where a ratio is beyond its bound by more than so much, in logs."""
        low, high = (1 - self._clip.low) * np.exp(-by), (1 + self._clip.high) * np.exp(by)
        clipped = (ratio < low) & (sign < 0) | (ratio > high) & (sign > 0)
        return np.asarray(clipped, dtype=np.float64)

    def _read(
        self, name: str, row_T: np.ndarray, rows: int, least: np.ndarray, most: np.ndarray
    ) -> None:
        for readings, values in ((self._least, least), (self._most, most)):
            readings.setdefault(name, Readings()).add(values, row_T, rows)

    def _readings(self) -> Row:
        pairs = {name: (self._least[name], self._most[name]) for name in self._least}
        least = {f"{name}_least": a.least_and_most()[0] for name, (a, _) in pairs.items()}
        return least | {f"{name}_most": b.least_and_most()[1] for name, (_, b) in pairs.items()}

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


def _log_ratio(batch: Padded, mask: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Of each trained token. Where TRL has no older log-probs it compares the pass with itself."""
    if OLD in batch:
        return _together(mask, new, batch[OLD])
    old = batch["old_per_token_logps"][mask] if "old_per_token_logps" in batch else new
    return np.asarray(new - old)


def _together(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """At each trained token the log-ratio of its whole completion."""
    row = np.nonzero(mask)[0]
    return np.asarray((np.bincount(row, new, minlength=len(mask)) - old)[row])


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _max(values: np.ndarray) -> float | None:
    return float(values.max()) if len(values) else None


def _known(values: np.ndarray) -> np.ndarray:
    known: np.ndarray = values[~np.isnan(values)]
    return known
