"""Held-out evaluation while training: a fixed set of problems, played with common random numbers.

The problems and their random numbers are the same at every step, for every seed and in every arm,
so two evaluations differ only by the weights and can be compared play by play. Each one is a line
of `heldout.jsonl`; a resumed run reads back the lines up to its checkpoint, and is refused where
they are of other problems.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

from flatline.errors import ConfigError
from flatline.files import write_atomically
from flatline.heldout import FILE, HeldOutScore, lines_of, read_scores
from flatline.rollout.engine import Job
from flatline.rollout.record import Rollout
from flatline.tasks.base import COMBINED, Problem
from flatline.training.rollouts import Rollouts


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
        self._folder = Path(rollouts.config.output_dir)

    def take_up(self, step: int) -> None:
        """Go on from what the run kept up to this step; raise where that is of other problems."""
        kept = [score for score in read_scores(self._folder) if score.step <= step]
        now = sorted(job.problem.id for job in self._jobs)
        for score in kept:
            if sorted(score.problems) != now:
                raise _other_problems(self._folder / FILE, score.problems, now)
        self.scores = kept

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.scores:
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
            write_atomically(self._folder / FILE, lines_of(self.scores))
        # transformers shows `eval_x` as `eval/x`.
        self._trainer.log_now({f"eval_{name}": value for name, value in score.parts.items()})
        return score


def _other_problems(path: Path, kept: Sequence[str], now: Sequence[str]) -> ConfigError:
    problems = len(set(kept))
    samples = len(kept) // max(problems, 1)
    return ConfigError(
        f"{path} has evaluations of {_counted(kept)}; this start has {_counted(now)}, and they are "
        "not the same.\nThe gain is paired by rollout, which needs the same rollouts all along.\n"
        f"Resume with `--eval-limit {problems} --eval-samples {samples}` and the "
        "--eval-datasets that the run began with (`requested` in run.json), or leave "
        "--resume-from-checkpoint out and start again in another --output-dir."
    )


def _counted(plays: Sequence[str]) -> str:
    return f"{len(set(plays))} held-out problems in {len(plays)} rollouts"


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
