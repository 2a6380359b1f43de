"""unsloth and ms-swift as they are, on a CPU: what flatline can tell of trainers built on TRL's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatline.diagnosis.report import diagnose
from flatline.trace import Trace
from flatline.trace.importers import open_log
from tests.family_lab.prepare import prepare

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tests" / "family_lab"
STEPS, GROUP = 3, 4
SWIFT = {
    "rlhf_type": "grpo",
    "model_type": "qwen2",
    "template": "qwen2_5",
    "external_plugins": LAB / "swift_plugin.py",
    "reward_funcs": "letters",
    "callbacks": "flatline",
    "use_vllm": "false",
    "max_steps": STEPS,
    "num_generations": GROUP,
    "per_device_train_batch_size": GROUP,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 16,
    "torch_dtype": "float32",
    "tuner_type": "full",
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "dataset_num_proc": 1,
    "beta": 0.04,
}


def run(package, command, **variables):
    """In a process of its own, with the package and what it brings before everything else."""
    path = os.pathsep.join(map(str, (ROOT / "build" / package, ROOT / "src")))
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **variables}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def here(package):
    if not (ROOT / "build" / package).is_dir():
        pytest.skip(f"{package} is not here; `make family` fetches it")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("given"))


def test_without_a_gpu_unsloth_leaves_trls_trainer_which_is_looked_at_and_recorded(given, tmp_path):
    here("unsloth")
    said = run("unsloth", (LAB / "with_unsloth.py", given, tmp_path)).splitlines()[-1]
    assert json.loads(said) == {"trainer": "trl.trainer.grpo_trainer", "alarms": []}
    trace = Trace.open(tmp_path / "run")
    assert len(trace.rollouts["reward"]) == STEPS * GROUP
    assert not diagnose(trace).alarms


@pytest.fixture(scope="module")
def swift(given, tmp_path_factory):
    here("ms-swift")
    out = tmp_path_factory.mktemp("swift")
    asked = SWIFT | {
        "model": given / "model",
        "dataset": given / "data.jsonl",
        "output_dir": out / "out",
    }
    words = [word for name, value in asked.items() for word in (f"--{name}", value)]
    main = "from swift.pipelines import rlhf_main; rlhf_main()"
    run("ms-swift", ("-c", main, *words), FLATLINE_OUT=str(out))
    return out


@pytest.mark.parametrize("asked", ["attach", "checkup"])
def test_ms_swift_replaces_the_inside_of_trls_trainer_and_this_is_said(swift, asked):
    said = json.loads((swift / "said.json").read_text())[asked]
    assert "The GRPOTrainer of `swift` is built on TRL's and replaces its inside" in said
    assert "flatline.watch(trainer.model, trainer.optimizer, run_dir)" in said


def test_a_training_of_ms_swift_is_watched_without_an_alarm(swift):
    found = diagnose(Trace.open(swift / "watched"))
    assert not found.alarms
    assert sum(one.level.value == "ok" for one in found.findings) >= 10


def test_the_log_of_ms_swift_is_read_step_by_step(swift):
    (path,) = swift.glob("out/*/logging.jsonl")
    trace = open_log(path)
    assert trace.steps["step"].tolist() == [1, 2, 3]
    assert {"reward", "kl", "grad_norm", "learning_rate"} <= set(trace.run["aliases"])
    assert trace.warnings == []
