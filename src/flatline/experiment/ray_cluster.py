"""Runs across the nodes of a Ray cluster, as the same processes that `Local` starts.

Every node must have flatline installed and see the folder of the runs under the same path: the
runs leave their traces there, and only a line about each of them travels through Ray.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from flatline.errors import ConfigError, type_to_add
from flatline.experiment.local import TICK, OnDone
from flatline.experiment.outcome import OUTCOME_FILE
from flatline.experiment.runs import GRACE, Job, run

LOST = 2
"""How often a run is begun again whose node or worker was lost; `run` empties its folder. One whose
command failed is not."""


class RayExecutor:
    """A Ray cluster; one on this machine where no address is given."""

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: int = 1,
        gpus: float | None = None,
        processes: int = 1,
    ) -> None:
        """`cpus` and `gpus` are those of one process, and `processes` those of one run."""
        self._address = address
        self._cpus, self._each = cpus, processes
        self._gpus = gpus
        """One where the cluster has any, unless a number is given."""

    @property
    def jobs(self) -> int:
        has = self._ray.cluster_resources()
        room = [has.get("CPU", 0) / self._cpus if self._cpus else float("inf")]
        room += [has.get("GPU", 0) / self._share] if self._share else []
        return max(1, int(min(room) / self._each))

    def of_processes(self, each: int) -> "RayExecutor":
        return RayExecutor(self._address, cpus=self._cpus, gpus=self._gpus, processes=each)

    def execute(self, jobs: Sequence[Job], on_done: OnDone, on_tick: Callable[[], None]) -> None:
        ray = self._ray
        asked = {"num_cpus": self._cpus * self._each, "num_gpus": self._share * self._each}
        task = ray.remote(**asked, max_retries=LOST)(run)
        environment = {"OMP_NUM_THREADS": str(max(1, self._cpus))}
        waiting = {task.remote(job, environment=environment): job for job in jobs}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1, timeout=TICK)
                for reference in done:
                    failure = self._ended(waiting[reference], reference)
                    on_done(waiting.pop(reference), failure)
                if not done:
                    on_tick()
        finally:
            for reference in waiting:
                ray.cancel(reference, force=False)
            if waiting:  # a cancelled task ends its command before it ends itself
                ray.wait(list(waiting), num_returns=len(waiting), timeout=2 * GRACE)

    def _ended(self, job: Job, reference: Any) -> str | None:
        try:
            failure: str | None = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            return f"Ray lost the run of {job.arm!r} on seed {job.seed}: {error}"
        if failure is None and not (job.path / OUTCOME_FILE).exists():
            raise ConfigError(
                f"A node has finished {job.folder}, and it cannot be seen from here.\n"
                "Runs leave their traces in that folder, so every node must see it.\n"
                "Give a folder on a file system that all nodes share."
            )
        return failure

    @property
    def _share(self) -> float:
        if self._gpus is not None:
            return self._gpus
        return 1.0 if self._ray.cluster_resources().get("GPU", 0) else 0.0

    @cached_property
    def _ray(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "Runs on a Ray cluster need ray, which is not installed.\n"
                f"{type_to_add('ray')}, or leave `--executor ray` out."
            ) from error
        if not ray.is_initialized():
            try:
                ray.init(address=self._address, log_to_driver=False, **self._starting())
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"There is no Ray cluster at {self._address or 'this machine'}: {error}.\n"
                    "Start one with `ray start --head`, or leave the address out."
                ) from error
        return ray

    def _starting(self) -> dict[str, Any]:
        """What only a cluster that is started here can be told."""
        if self._address is not None:
            return {}
        return {"include_dashboard": False}
