"""verl on a CPU with the lab policy: what stands where a GPU and vLLM stand, and nothing else.

Given to verl as `VERL_USE_EXTERNAL_MODULES=tests.verl_lab.plugin`, with `VERL_PLATFORM=cpu`. It
goes through verl's own registries; no line of verl is replaced.
"""

import os
import sys

sys.modules["trl"] = None  # type: ignore[assignment]  # verl 0.9.1 asks it for a class that is gone

from verl.workers.rollout.base import _ROLLOUT_REGISTRY  # noqa: E402
from verl.workers.rollout.replica import RolloutReplicaRegistry  # noqa: E402

from tests.verl_lab import platform  # noqa: E402


def _replica() -> type:
    """When it is asked for: a process that begins with the server imports verl from there."""
    from tests.verl_lab.server import LabReplica

    return LabReplica


platform.register()
RolloutReplicaRegistry.register("lab", _replica)
_ROLLOUT_REGISTRY[("lab", "async")] = "tests.verl_lab.server.ServerAdapter"
if os.environ.get("VERL_LAB_FAULT") == "mask":
    from tests.verl_lab import loops  # noqa: F401  # which registers itself
