"""A training loop on the Tinker API (Tinker, SkyRL-tx): recorded, and looked at.

watch("runs/x")                 records what the clients sample and train
rewards(values, sequences)      tells the rewards of what was sampled
Training(service, client, step) for `flatline.checkup`
"""

from flatline.live.tinker.training import Training
from flatline.live.tinker.watch import rewards, watch

__all__ = ["Training", "rewards", "watch"]
