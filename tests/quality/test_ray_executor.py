"""Experiments on a Ray cluster of this machine; `test_ray_nodes.py` has several nodes."""

from importlib.util import find_spec

import pytest

from flatline.errors import ConfigError
from flatline.experiment import RayExecutor
from tests.test_experiment_runs import alive, carry_out, plan_with, slow_plan, starts, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if find_spec("ray") is None:
        pytest.skip('ray is not installed: pip install ".[ray]"')
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray keeps a token there
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield RayExecutor()
        ray.shutdown()


def test_a_ray_cluster_gives_the_same_numbers(tmp_path, cluster):
    assert cluster.jobs == 2
    here = carry_out(tmp_path / "local", plan_with())
    there = carry_out(tmp_path / "ray", plan_with(), cluster)
    assert there.verdict == here.verdict
    assert [(r.arm, r.seed, r.value) for r in there.runs] == [
        (r.arm, r.seed, r.value) for r in here.runs
    ]


def test_a_failing_command_on_ray_is_told_like_any_other(tmp_path, cluster):
    with pytest.raises(ConfigError, match="the data set is missing"):
        carry_out(tmp_path, plan_with("--fail"), cluster)


def test_an_interrupted_experiment_on_ray_leaves_no_process(tmp_path, cluster):
    plan, count = slow_plan(tmp_path, "--steps 500"), tmp_path / "count"

    def interrupt(progress):
        if len(starts(count)) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, plan, cluster, on_progress=interrupt)
    until(lambda: not any(alive(int(pid)) for _, _, pid in starts(count)))
