"""`heldout.jsonl`: what a run earned on its held-out problems, play by play, a line an evaluation.

    {"step": 0, "problems": ["2hop__1", ...], "rewards": [0.5, ...], "parts": {...}, "plays": {...},
     "evaluations": 3, "checksum": "f00dcafe"}

Every line has the number of lines and its own checksum, so that a lost or changed one is seen; a
file of an older flatline has neither. Training writes it; experiments, reports and resumed runs
read it here.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flatline.errors import TraceError
from flatline.files import CHECKSUM, bytes_in, sealed, unsealed
from flatline.stats import UNKNOWN, Estimate, cluster_mean, paired_difference
from flatline.tasks.base import COMBINED

FILE = "heldout.jsonl"
MOST = 512 * 2**20
"""Bytes of it: fifty evaluations of 8,000 plays have a tenth of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """One evaluation: one line of `heldout.jsonl`."""

    step: int
    """Optimizer steps behind the weights."""
    problems: list[str]
    """The problem of each play."""
    rewards: list[float]
    """Combined reward of each play."""
    parts: dict[str, float] = field(default_factory=dict)
    """Mean of every part over the plays that have it."""
    plays: dict[str, list[float | None]] = field(default_factory=dict)
    """Every part of each play; None where a problem does not have it."""

    @property
    def reward(self) -> Estimate:
        return cluster_mean(self.rewards, self.problems, bounds=(0.0, max(1.0, *self.rewards)))

    def since(self, earlier: "HeldOutScore", part: str = COMBINED) -> Estimate:
        """This minus an earlier evaluation, play by play, of the reward or of one part.

        Raises `TraceError` where the plays are of other problems.
        """
        if self.problems != earlier.problems:
            raise TraceError(
                f"The evaluations at steps {earlier.step} and {self.step} are of different "
                f"held-out problems: {len(earlier.problems)} rollouts and {len(self.problems)}.\n"
                "A difference between them could be one between the problems.\n"
                "Evaluate both with the same --eval-datasets, --eval-limit and --eval-samples."
            )
        pairs = [
            (problem, before, after)
            for problem, before, after in zip(
                self.problems, earlier.plays[part], self.plays[part], strict=True
            )
            if before is not None and after is not None
        ]
        if not pairs:
            return UNKNOWN
        problems, before, after = zip(*pairs, strict=True)
        top = max(1.0, *before, *after)
        return paired_difference(before, after, problems, bounds=(0.0, top))


def lines_of(scores: Sequence[HeldOutScore]) -> Iterator[str]:
    """The file that holds these evaluations."""
    for score in scores:
        plain = json.loads(json.dumps(asdict(score)))
        yield json.dumps(sealed({**plain, "evaluations": len(scores)}))


def read_scores(folder: Path) -> list[HeldOutScore]:
    """Every evaluation that a run has written; none where it has no such file, or another tool's.

    A file of ours that is damaged raises `TraceError`.
    """
    path = folder / FILE
    try:
        text = bytes_in(path, most=MOST).decode("utf-8")
        rows = [json.loads(line) for line in text.splitlines() if line]
        if rows and not any(map(_is_ours, rows)):
            return []
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("not every line is an evaluation")
        scores = [_score(row) for row in rows]
        _refuse_lost(rows, scores)
        return scores
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise TraceError(
            f"{path} cannot be read: {error}.\nThe held-out reward of the run is lost.\n"
            "Move the file away, or run it again."
        ) from error


def _is_ours(row: Any) -> bool:
    return isinstance(row, dict) and (CHECKSUM in row or {"problems", "rewards"} <= row.keys())


def _refuse_lost(rows: Sequence[Mapping[str, Any]], scores: Sequence[HeldOutScore]) -> None:
    if not rows:
        raise ValueError("it is empty")
    counts = {row.get("evaluations", len(rows)) for row in rows}
    if counts != {len(rows)}:
        raise ValueError(f"it has {len(rows)} of {', '.join(map(str, counts))} evaluations")
    steps = [score.step for score in scores]
    if "evaluations" in rows[0] and steps != sorted(set(steps)):
        raise ValueError("its evaluations are out of order")


def _score(row: Mapping[str, Any]) -> HeldOutScore:
    row, sound = unsealed(row)
    if not sound:
        raise ValueError(f"the evaluation at step {row.get('step')} has changed since")
    rewards = [float(reward) for reward in row["rewards"]]
    problems = [str(problem) for problem in row["problems"]]
    if len(rewards) != len(problems) or not all(map(math.isfinite, rewards)):
        raise ValueError("every rollout needs a problem and a reward")
    return HeldOutScore(
        step=int(row["step"]),
        problems=problems,
        rewards=rewards,
        parts=row.get("parts", {}),
        plays=row.get("plays", {}),
    )
