"""`flatline run` in two processes (gloo, on CPUs), and an experiment with a script on Ray."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from flatline.config import RunConfig
from flatline.diagnosis.report import diagnose
from flatline.experiment import RayExecutor
from flatline.heldout import read_scores
from flatline.hypotheses import find
from flatline.investigation import Setup
from flatline.investigation.script import Script, investigate_script
from flatline.trace import Trace

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "scripts"))

import prepare

SUMS = Path(prepare.__file__).parent / "sums.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A model that has learned next to nothing, and its data."""
    folder = tmp_path_factory.mktemp("given")
    before, prepare.FITTED = prepare.FITTED, 3
    prepare.prepare(folder)
    prepare.FITTED = before
    return str(folder / "model"), str(folder / "sums.jsonl"), "--steps", "2", "--fault", "mask"


def run(given, folder, *asked):
    command = [*TORCHRUN, "-m", "flatline", "run", *asked, "--seed", "2", "--evaluate"]
    command += ["--output", str(folder / "out"), str(SUMS), "--", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize("remedy", ["none", "H09"])
def test_two_processes_are_recorded_and_remedied_and_say_so_once(given, tmp_path, remedy):
    said = run(given, tmp_path, "--remedy", remedy, "--record", str(tmp_path / "run"))
    trace = Trace.open(tmp_path / "run")
    assert all(list((tmp_path / "run").glob(f"rollouts.r{rank}.*")) for rank in (0, 1))
    levels = {one.hypothesis: one.level for one in diagnose(trace).findings}
    assert levels["H09"] == ("fault" if remedy == "none" else "ok")
    assert [one.step for one in read_scores(tmp_path / "run")] == [0, 2]
    assert said.count("the remedy for H09 put something right in") == (remedy != "none")


def test_a_pilot_of_two_processes_compares_both_gradients(given, tmp_path):
    path = tmp_path / "pilot.json"
    run(given, tmp_path, "--remedy", "H09", "--pilot", str(path))
    found = json.loads(path.read_text())
    assert found["processes"] == 2
    assert all(one["cosine"] < 0.9 for one in found["gradient"])


def test_it_runs_under_accelerate_launch(given, tmp_path):
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"),
        *("-m", "flatline", "run", "--remedy", "H09", "--record", str(tmp_path / "run")),
        *("--seed", "2", "--output", str(tmp_path / "out")),
        *(str(SUMS), "--", *given),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "remedy for H09: this run gives the model ones" in done.stderr
    assert Trace.open(tmp_path / "run").run["seed"] == 2


class Said:
    def say(self, text):
        pass

    def progress(self, progress):
        pass


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_script_is_investigated_on_ray(given, tmp_path):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        setup = Setup(
            config=RunConfig(),
            runs=tmp_path / "runs",
            experiments=tmp_path / "plans",
            looks=(2,),
            train_anyway=True,  # two seeds decide nothing
        )
        script = Script(path=SUMS, arguments=given)
        (found,) = investigate_script(setup, script, [find("H09")], RayExecutor(), Said())
    finally:
        ray.shutdown()
    assert found.verdict.effect.n == 2
    assert found.verdict.mechanism.control == "present"
    assert found.verdict.mechanism.treated == "absent"
