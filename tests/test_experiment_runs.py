"""Experiments with real processes: a small script stands for the user's training."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.experiment import Local, arms_of, conduct, read_outcome
from flatline.experiment import local as local_module
from flatline.experiment import runs as runs_module
from flatline.experiment.outcome import measure
from flatline.experiment.runs import job_of, run
from flatline.trace import Recorder, Trace
from flatline.trace.announce import VARIABLE, announce, announced
from tests.experiments import COMMAND, plan_of

ROOT = Path(__file__).parent.parent


def plan_with(extra="", command=COMMAND, **changes):
    _, arms = arms_of(f"{command} {extra}", "kl_beta=0.04,0.0")
    return plan_of(arms, **{"looks": (3,), **changes})


def carry_out(tmp_path, plan, executor=None, **kwargs):
    return conduct(
        plan,
        tmp_path / "experiments" / plan.name,
        tmp_path / "runs",
        executor or Local(2),
        **kwargs,
    )


def starts(count):
    return [line.split() for line in count.read_text().splitlines()] if count.exists() else []


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One run, carried out by a real process."""
    runs = tmp_path_factory.mktemp("runs")
    job = job_of(plan_with().control, 2, runs)
    assert run(job) is None
    return job


def test_a_command_is_found_through_its_trace_and_measured(measured):
    outcome = read_outcome(measured.path)
    heldout = outcome.outcomes["heldout_reward"]
    assert (heldout.before, heldout.after) == (pytest.approx(0.4), pytest.approx(0.42))
    assert heldout.value == pytest.approx(0.02)
    assert outcome.outcomes["metric:my/beta"].value == 0.04
    assert outcome.findings["H09"].level == "fault"
    assert (outcome.trace, outcome.steps) == (".", 6)


def test_the_training_reward_is_compared_by_thirds_of_the_raw_steps(measured):
    reward = Trace.open(measured.path).steps["reward"]
    reward = reward[reward == reward]
    found = read_outcome(measured.path).outcomes["reward"]
    assert found.value == pytest.approx(reward[-2:].mean() - reward[:2].mean())


def test_a_run_that_is_finished_is_not_started(measured):
    before = (measured.path / "log.txt").stat().st_mtime_ns
    assert run(replace(measured, command=("false",))) is None
    assert (measured.path / "log.txt").stat().st_mtime_ns == before


def test_two_experiments_that_want_the_same_run_at_once_make_it_once(tmp_path):
    job = job_of(slow_plan(tmp_path).control, 0, tmp_path / "runs")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [job, job])) == [None, None]
    assert len(starts(tmp_path / "count")) == 1


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("--fail", {"the data set is missing", "exit code 1"}),
        ("--silent", {"recorded nothing", "flatline.attach(trainer, run_dir)"}),
    ],
)
def test_a_command_that_fails_or_records_nothing_is_told_so(tmp_path, extra, told):
    failure = run(job_of(plan_with(extra).control, 0, tmp_path))
    assert {words for words in told if words in failure} == told


def test_a_command_that_is_killed_is_told_so(tmp_path):
    job = replace(job_of(plan_with().control, 0, tmp_path), command=("sh", "-c", "kill -9 $$"))
    assert "exit code 137 (killed" in run(job)


def test_a_crashed_run_leaves_nothing_to_the_next_one(tmp_path):
    job = job_of(plan_with().control, 0, tmp_path)
    job.path.mkdir()
    with Recorder(job.path) as recorder:
        recorder.log_step(step=50, reward=1.0)
    assert run(job) is None
    assert read_outcome(job.path).steps == 6


def test_a_config_arm_is_run_by_flatline_train_and_its_refusal_is_shown(tmp_path):
    from flatline.experiment import Arm, Role

    missing = RunConfig(model=str(tmp_path / "no-model"))
    job = job_of(Arm(name="a", role=Role.CONTROL, config=missing), 0, tmp_path)
    failure = run(job)
    assert "exit code 2" in failure
    assert "no-model" in failure
    assert (job.path / "config.toml").is_file()


CONDUCTOR = """
import sys
from pathlib import Path
from flatline.experiment import Local, arms_of, conduct
from tests.experiments import plan_of
folder, command = Path(sys.argv[1]), sys.argv[2]
_, arms = arms_of(command, "kl_beta=0.04,0.0")
plan = plan_of(arms, looks=(2,))
conduct(plan, folder / "experiments" / plan.name, folder / "runs", Local(1))
"""


def start_conductor(tmp_path, plan):
    command = [sys.executable, "-c", CONDUCTOR, str(tmp_path), plan.control.command]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


def slow_plan(tmp_path, extra=""):
    return plan_with(f"--count {tmp_path / 'count'} --pause 0.05 {extra}", looks=(2,))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_conductor_that_is_ended_leaves_no_process_and_repeats_no_finished_run(tmp_path, number):
    plan, count = slow_plan(tmp_path), tmp_path / "count"
    conductor = start_conductor(tmp_path, plan)
    until(lambda: len(starts(count)) == 2)
    conductor.send_signal(number)
    conductor.communicate(timeout=120)
    assert conductor.returncode != 0
    until(lambda: not any(alive(int(pid)) for _, _, pid in starts(count)))
    assert len(list((tmp_path / "runs").rglob("outcome.json"))) == 1
    assert carry_out(tmp_path, plan).looks[-1].which == (0, 1)
    seen = [(beta, seed) for beta, seed, _ in starts(count)]
    assert len(seen) == 5
    assert len(set(seen)) == 4


def test_a_command_that_does_not_end_when_asked_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "GRACE", 0.5)
    plan, count = slow_plan(tmp_path, "--stubborn --steps 500"), tmp_path / "count"
    job = job_of(plan.control, 0, tmp_path / "runs")
    with pytest.raises(runs_module.Stopped):
        run(job, stopping=lambda: (job.path / "run.json").exists())
    assert not alive(int(starts(count)[0][2]))
    assert read_outcome(job.path) is None


def test_an_error_of_one_run_ends_the_others(tmp_path):
    plan, count = slow_plan(tmp_path, "--steps 500"), tmp_path / "count"
    jobs = [job_of(plan.control, seed, tmp_path / "runs") for seed in range(2)]
    quick = job_of(plan_with().control, 0, tmp_path / "runs")

    def refuse(job, failure):
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        Local(2).execute([jobs[0], quick, jobs[1]], refuse, lambda: None)
    assert not any(alive(int(pid)) for _, _, pid in starts(count))


def test_the_step_of_a_run_that_is_going_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(local_module, "TICK", 0.1)
    told = []
    carry_out(tmp_path, plan_with("--pause 0.2", looks=(2,)), on_progress=told.append)
    steps = {one.step for one in told if one.step is not None}
    assert len(steps & {1, 2, 3, 4, 5}) >= 2


def test_gpus_are_counted_without_torch(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    executor = Local()
    assert executor.jobs == 2
    shares = [executor.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert shares == ["2", "5", "2"]
    together = executor.of_processes(2)
    assert together.jobs == 1
    assert together.environment(0)["CUDA_VISIBLE_DEVICES"] == "2,5"
    with pytest.raises(ConfigError, match="3 processes, and this machine has 2 GPU"):
        executor.of_processes(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_module.gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert local_module.gpus() == ["0", "1"]


def test_the_threads_of_a_run_do_not_depend_on_how_many_go_on_at_once(monkeypatch):
    monkeypatch.setattr(local_module, "cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Local().jobs == 8
    for jobs in (1, 3, 8):
        assert Local(jobs).environment(0) == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert Local(3).environment(0) == {"OMP_NUM_THREADS": "5"}
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for jobs in (1, 2):
        assert Local(jobs).environment(0)["OMP_NUM_THREADS"] == "4"
    with pytest.raises(ConfigError, match="--jobs 1"):
        Local(0)


def test_a_recording_announces_its_folder_and_never_breaks_the_run(tmp_path, monkeypatch):
    file = tmp_path / "announced"
    monkeypatch.setenv(VARIABLE, str(file))
    for name in ("a\nb", "a\nb", "c"):
        with Recorder(tmp_path / name):
            pass
    with file.open("a") as cut_off:
        cut_off.write('"/b')
    assert announced(file) == [tmp_path / "a\nb", tmp_path / "c"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no" / "folder"))
    announce(tmp_path)
    monkeypatch.delenv(VARIABLE)
    announce(tmp_path)


def evaluated(folder, last):
    with Recorder(folder) as recorder:
        for step in range(1, 4):
            recorder.log_step(step=step, reward=0.1 * step)
    rows = [{"step": 0, "problems": ["p", "q"], "rewards": [0.0, 1.0]}]
    rows.append({"step": 3, "problems": last, "rewards": [1.0, 1.0]})
    (folder / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_held_out_problems_are_read_play_by_play(tmp_path):
    evaluated(tmp_path, last=["p", "q"])
    outcome = measure(tmp_path, tmp_path, seconds=1.0)
    assert outcome.outcomes["heldout_reward"].value == 0.5
    assert outcome.outcomes["heldout_reward"].gain.n == 2
    assert len(outcome.problems_digest) == 64
    assert read_outcome(tmp_path) == outcome


def test_evaluations_of_different_problems_have_no_gain(tmp_path):
    evaluated(tmp_path, last=["p", "r"])
    assert "heldout_reward" not in measure(tmp_path, tmp_path, seconds=1.0).outcomes


def test_an_outcome_of_another_version_is_not_run_again(tmp_path):
    (tmp_path / "outcome.json").write_text('{"version": 9}')
    with pytest.raises(ConfigError, match="version 9"):
        read_outcome(tmp_path)
