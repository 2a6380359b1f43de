"""`flatline investigate` over a Ray cluster of several nodes, each a raylet of its own."""

import json
import os
import shlex
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from tests.experiments import COMMAND

NODES, SEEDS = 3, 3
FLATLINE = [sys.executable, "-P", "-c", "from flatline.cli import main; main()"]
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The head trains nothing, as in most clusters; every other node has room for one run."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray keeps a token there
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(NODES):
            made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
        made.shutdown()


def begin(cluster, tmp_path, *, pause):
    """`flatline investigate`, as somebody types it on a machine that knows the cluster."""
    says_where = f'echo "$RAY_RAYLET_PID" >> {tmp_path}/nodes; exec {COMMAND} --pause {pause}'
    words = ["investigate", "H09", "--command", shlex.join(["sh", "-c", says_where])]
    words += ["--arms", "kl_beta=0.04,0.0", "--seeds", str(SEEDS), "--runs", str(tmp_path / "runs")]
    return subprocess.Popen(
        [*FLATLINE, *words, "--executor", "ray", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )


def verdict_of(command):
    said, complaints = command.communicate(timeout=280)
    assert command.returncode in (0, 1), complaints
    return json.loads(said)


def nodes(tmp_path):
    path = tmp_path / "nodes"
    return path.read_text().split() if path.exists() else []


def test_arms_and_seeds_run_on_every_node(cluster, tmp_path):
    found = verdict_of(begin(cluster, tmp_path, pause=0.5))
    assert found["verdict"] == "validated"
    assert found["effect"]["n"] == SEEDS
    assert len(nodes(tmp_path)) == 2 * SEEDS
    assert len(set(nodes(tmp_path))) == NODES


def test_what_a_lost_node_was_training_is_trained_on_another(cluster, tmp_path):
    command = begin(cluster, tmp_path, pause=1.0)
    while len(nodes(tmp_path)) < NODES:
        assert command.poll() is None, command.communicate()
        time.sleep(0.2)
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
    found = verdict_of(command)
    assert found["verdict"] == "validated"
    assert found["effect"]["n"] == SEEDS
    assert len(nodes(tmp_path)) == 2 * SEEDS + 1
