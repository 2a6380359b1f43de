"""Held-out evaluation while training: a fixed set of problems, played with common random numbers.

The problems and their random numbers are the same at every step, for every seed and in every arm,
so two evaluations differ only by the weights and can be compared play by play. Each one is a line
of `heldout.jsonl`; a resumed run reads back the lines up to its checkpoint.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from flatline.files import write_atomically
from flatline.rollout.engine import Job
from flatline.rollout.record import Rollout
from flatline.stats import UNKNOWN, Estimate, cluster_mean, paired_difference
from flatline.tasks.base import COMBINED, Problem
from flatline.training.rollouts import Rollouts

FILE = "heldout.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutScore:
    """One evaluation: one line of `heldout.jsonl`."""

    step: int
    """Optimizer steps behind the weights."""
    problems: list[str]
    """The problem of each play."""
    rewards: list[float]
    """Combined reward of each play."""
    parts: dict[str, float]
    """Mean of every part over the plays that have it."""
    plays: dict[str, list[float | None]]
    """Every part of each play; None where a problem does not have it."""

    @property
    def reward(self) -> Estimate:
        return cluster_mean(self.rewards, self.problems, bounds=(0.0, max(1.0, *self.rewards)))

    def since(self, earlier: "HeldOutScore", part: str = COMBINED) -> Estimate:
        """This minus an earlier evaluation, play by play, of the reward or of one part."""
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


class HeldOut(TrainerCallback):  # type: ignore[misc]
    """Evaluates at the start, every so many steps and at the end."""

    def __init__(
        self, trainer: Any, rollouts: Rollouts, problems: Sequence[Problem], *, seed: int
    ) -> None:
        self.scores: list[HeldOutScore] = []
        """In the order of the steps."""
        self._trainer = trainer
        self._rollouts = rollouts
        self._seed = seed
        samples = range(rollouts.config.eval_samples)
        self._jobs = [Job(problem, sample) for problem in problems for sample in samples]
        self._every = rollouts.config.eval_steps
        self._path = Path(rollouts.config.output_dir) / FILE

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step:
            self.scores = [
                score for score in read_scores(self._path) if score.step <= state.global_step
            ]
        if not state.global_step or not self.scores:
            self.evaluate()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._every and state.global_step % self._every == 0:
            self.evaluate()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.scores or self.scores[-1].step != state.global_step:
            self.evaluate()

    def evaluate(self) -> HeldOutScore:
        """Play the set with the current weights, each process its share, and log the means."""
        accelerator = self._trainer.accelerator
        mine = self._jobs[accelerator.process_index :: accelerator.num_processes]
        with self._rollouts.playing(self._trainer) as engine:
            played = engine.play(mine, seed=self._seed)
        rows = gather_object([_row(rollout) for rollout in played])
        score = _score(self._trainer.state.global_step, rows)
        self.scores.append(score)
        if accelerator.is_main_process:
            write_atomically(self._path, (json.dumps(asdict(one)) for one in self.scores))
        # transformers shows `eval_x` as `eval/x`.
        self._trainer.log_now({f"eval_{name}": value for name, value in score.parts.items()})
        return score


def read_scores(path: Path) -> list[HeldOutScore]:
    """Every evaluation that a run has written; none where it wrote no file."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [HeldOutScore(**json.loads(line)) for line in lines]


def _row(rollout: Rollout) -> tuple[str, int, float, dict[str, float]]:
    return rollout.problem_id, rollout.sample, rollout.score.reward, dict(rollout.score.parts)


def _score(step: int, rows: Sequence[tuple[str, int, float, dict[str, float]]]) -> HeldOutScore:
    rows = sorted(rows, key=lambda row: row[:2])  # the order must not depend on the processes
    rewards = [reward for _, _, reward, _ in rows]
    names = dict.fromkeys(name for _, _, _, parts in rows for name in parts)
    plays: dict[str, list[float | None]] = {
        COMBINED: list(rewards),
        **{name: [parts.get(name) for _, _, _, parts in rows] for name in names},
    }
    return HeldOutScore(
        step=step,
        problems=[id for id, _, _, _ in rows],
        rewards=rewards,
        parts={name: _mean(values) for name, values in plays.items()},
        plays=plays,
    )


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)
