"""Noise is added to the reward, as a moody judge or a flaky environment adds it.

Not from a report: the same completion earns something else each time. (Seen as an experiment in
"Spurious Rewards", arXiv 2506.10947, where rewards are nothing but noise.)

Strength: standard deviation of the noise. The rewards of the lab differ by about 0.25 in a group.
"""

from typing import Any, ClassVar

import numpy as np

from flatline.faults.base import Fault
from flatline.faults.wrapping import Rewards, edit_rewards, place, problem_keys
from flatline.live.trl.grpo import GrpoTrainer


class RewardNoise(Fault):
    name: ClassVar[str] = "reward-noise"
    hypothesis: ClassVar[str] = "H05"
    bounds: ClassVar[tuple[float, float]] = (0, 1000)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def edit(rewards: Rewards, batch: dict[str, Any]) -> Rewards:
            noise = noise_of(trainer, batch, len(rewards)) * strength
            return [
                None if reward is None else reward + float(extra)
                for reward, extra in zip(rewards, noise, strict=True)
            ]

        edit_rewards(trainer, edit)


def noise_of(
    trainer: GrpoTrainer, batch: dict[str, Any], n: int
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Standard normal numbers of this run, step, process and batch.

    Global randomness is not touched. Without the batch, all that is scored in one step alone would
    earn the same extra, and a judge would look steady to a checkup.
    """
    step = batch["trainer_state"].global_step
    scored = place(f"{problem_keys(batch)} {batch.get('completions')}")
    key = [trainer.args.seed, step, trainer.accelerator.process_index, int(scored * 2**48)]
    return np.random.default_rng(key).standard_normal(n)
