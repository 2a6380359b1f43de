"""Arms that cannot learn. If one of them gains, the outcome shows something other than learning."""

from dataclasses import replace

from flatline.config import RunConfig
from flatline.experiment.plan import Arm, Role

NOISE = "reward-noise:1000"
"""Against it no reward of a task weighs anything, and advantages are divided by its spread."""


def negative_arms(config: RunConfig) -> tuple[Arm, ...]:
    """Of the treated arm's config, which would learn were it not for what is changed here."""
    noisy = f"{config.fault}+{NOISE}" if config.fault else NOISE
    return (
        Arm(
            name="learning-rate-0",
            role=Role.NEGATIVE,
            config=replace(config, learning_rate=0.0),
        ),
        Arm(name="random-reward", role=Role.NEGATIVE, config=replace(config, fault=noisy)),
    )
