"""`flatline investigate --command` with trainers that know nothing of flatline.

Each stand-in for a training leaves in its folder what that framework or tracker leaves, and no
trace. With the suspected cause it is flat, without it the reward climbs, and seeds differ.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from tests import framework_logs as logs
from tests import tracker_logs as trackers

STEPS, SEEDS = 24, 3
BROKEN, MENDED = "512", "4096"
"""Values of the one factor, a limit of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What a framework logs, and where."""

    names: tuple[str, ...]
    """Of its metrics."""
    reward: str
    """The one that is its reward."""
    code: str
    """A hypothesis that its log can tell."""
    symptom: str
    """The metric that it is told by."""
    write: Callable[[Path, trackers.Rows], None]
    """How it leaves its log."""
    step: str = "step"
    """What it calls the step, beside what the tracker knows."""


CUT, KL = "H04", "H03"
SIZES = {CUT: (0.6, 0.01), KL: (2.0, 0.001)}
"""The symptom with the cause and without."""
TRAINERS = {
    "trl": Trainer(
        names=logs.TRL_METRICS,
        reward="reward",
        code=CUT,
        symptom="completions/clipped_ratio",
        write=trackers.trainer_state,
    ),
    "verl": Trainer(
        names=logs.VERL_METRICS,
        reward="critic/score/mean",
        code=CUT,
        symptom="response_length/clip_ratio",
        write=trackers.verl_file,
    ),
    "prime-rl": Trainer(
        names=logs.PRIME_RL_METRICS,
        reward="agg/all/reward/mean",
        code=CUT,
        symptom="agg/all/is_truncated/mean",
        write=trackers.prime_rl_monitor,
    ),
    "openrlhf-tensorboard": Trainer(
        names=logs.OPENRLHF_METRICS,
        reward="train/reward",
        code=CUT,
        symptom="train/truncated",
        write=trackers.tensorboard,
    ),
    "nemo-rl-mlflow": Trainer(
        names=logs.NEMO_RL_METRICS,
        reward="train/reward",
        code=KL,
        symptom="train/kl_penalty",
        write=trackers.mlflow_database,
    ),
    "skyrl-wandb": Trainer(
        names=logs.SKYRL_METRICS,
        reward="reward/avg_raw_reward",
        code=KL,
        symptom="policy/policy_kl",
        write=trackers.wandb_offline,
        step="trainer/global_step",
    ),
    "any-loop": Trainer(
        names=("reward", "truncated_share"),
        reward="reward",
        code=CUT,
        symptom="truncated_share",
        write=trackers.plain_jsonl,
    ),
}
DUMPS = {
    "verl": logs.verl_rollouts,
    "nemo-rl": logs.nemo_rl_train_data,
    "prime-rl": logs.prime_rl_stream,
    "prime-rl-tokens": logs.prime_rl_token_export,
    "skyrl": logs.skyrl_evals,
}


def rows_of(trainer: Trainer, value: str, seed: int) -> trackers.Rows:
    """Every metric that the framework logs; only reward and symptom say anything."""
    mended = value == MENDED
    rows = []
    for step in range(1, STEPS + 1):
        row = {"step": step, trainer.step: step, **dict.fromkeys(trainer.names, 0.001)}
        row[trainer.symptom] = SIZES[trainer.code][mended]
        row[trainer.reward] = 0.4 + mended * (0.4 + 0.01 * (seed - 1)) * step / STEPS
        rows.append(row)
    return rows


def played_like(value: str, seed: int) -> Callable[[int], list[logs.Played]]:
    """Dead groups, or groups that differ and are solved more and more; no problem comes twice."""
    fresh = [
        replace(one, prompt=one.prompt + logs.PROMPTS * (one.step - 1)) for one in logs.played()
    ]
    right = {one.prompt: _right(one, seed) * (value == MENDED) for one in fresh}
    done = [replace(one, reward=float(one.number < right[one.prompt])) for one in fresh]
    return lambda _=logs.STEPS: done


def _right(one: logs.Played, seed: int) -> int:
    """Of a group of four; the seeds part in the first group of the last step."""
    if one.step == logs.STEPS and one.prompt % logs.PROMPTS == 0:
        return 1 + seed
    return 1 if one.step <= logs.STEPS // 2 else 2


def investigate(tmp_path: Path, code: str, *more: str, source: Path | None = None):
    """The command of the stand-in copies what it would have written; it starts no Python."""
    ready = shlex.quote(str(source or tmp_path / "ready"))
    command = f"cp -r {ready}/{{limit}}-{{seed}}/. {{run_dir}}"
    words = ["investigate", code, "--command", command, "--arms", f"limit={BROKEN},{MENDED}"]
    words += ["--seeds", str(SEEDS), "--jobs", "1", "--runs", str(tmp_path / "runs"), "--json"]
    return CliRunner().invoke(app, [*words, *more])


def each_run(tmp_path: Path):
    """The folder, the value and the seed of every run that is wanted."""
    for value in (BROKEN, MENDED):
        for seed in range(SEEDS):
            yield tmp_path / "ready" / f"{value}-{seed}", value, seed


@pytest.mark.parametrize("name", TRAINERS)
def test_an_experiment_reaches_its_verdict_from_the_log_of_a_framework(tmp_path, name):
    trainer = TRAINERS[name]
    for folder, value, seed in each_run(tmp_path):
        trainer.write(folder, rows_of(trainer, value, seed))
    done = investigate(tmp_path, trainer.code, "--outcome", "reward")
    assert done.exit_code == 1, done.output
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "validated"
    assert verdict["effect"]["n"] == SEEDS
    assert verdict["effect"]["value"] == pytest.approx(0.4 * 16 / STEPS, abs=1e-6)


@pytest.mark.parametrize("name", DUMPS)
def test_an_experiment_reaches_its_verdict_from_the_rollouts_of_a_framework(
    tmp_path, name, monkeypatch
):
    for folder, value, seed in each_run(tmp_path):
        with monkeypatch.context() as patch:
            patch.setattr(logs, "played", played_like(value, seed))
            DUMPS[name](folder)
    done = investigate(tmp_path, "H32", "--outcome", "reward")
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["verdict"] == "validated"


def test_any_metric_of_a_log_can_be_the_outcome_and_the_held_out_reward_too(tmp_path):
    trainer = replace(TRAINERS["verl"], reward="val-core/gsm8k/reward/mean@1")
    for folder, value, seed in each_run(tmp_path):
        trainer.write(folder, rows_of(trainer, value, seed))
    by_metric = investigate(tmp_path, CUT, "--outcome", f"metric:{trainer.reward}", "--name", "a")
    held_out = investigate(tmp_path, CUT, "--name", "b")
    gained = json.loads(held_out.stdout)["effect"]["value"]
    assert json.loads(by_metric.stdout)["verdict"] == "validated"
    assert gained == pytest.approx(0.4 * (STEPS - 1) / STEPS, abs=1e-6)


def test_a_cause_that_makes_no_difference_is_not_validated_from_a_log(tmp_path):
    trainer = TRAINERS["verl"]
    for folder, value, seed in each_run(tmp_path):
        rows = rows_of(trainer, value, seed)
        gain = 0.012 * (seed - 1) * (value == MENDED)
        flat = [{**row, trainer.reward: 0.4 + gain * row["step"] / STEPS} for row in rows]
        trainer.write(folder, flat)
    done = investigate(tmp_path, CUT, "--outcome", "reward")
    assert json.loads(done.stdout)["verdict"] == "partial"


def test_the_journal_keeps_the_curves_of_runs_that_only_left_a_log(tmp_path):
    trainer = TRAINERS["prime-rl"]
    for folder, value, seed in each_run(tmp_path):
        trainer.write(folder, rows_of(trainer, value, seed))
    journal = tmp_path / "j"
    CliRunner().invoke(app, ["journal", "init", str(journal), "musique"])
    investigate(tmp_path, CUT, "--outcome", "reward", "--journal", str(journal))
    kept = json.loads((journal / "experimental-results/h04-context-truncation.json").read_text())
    assert len(kept["curves"]) == 2 * SEEDS
    assert all(len(curve["reward"]) == STEPS for curve in kept["curves"].values())


def test_a_command_that_leaves_no_log_is_told_where_to_put_it(tmp_path):
    for folder, *_ in each_run(tmp_path):
        folder.mkdir(parents=True)
        (folder / "notes.md").write_text("nothing to read")
    done = investigate(tmp_path, CUT, "--outcome", "reward")
    assert done.exit_code == 2
    assert "{run_dir}" in done.stderr and "notes.md" in done.stderr
    assert "flatline.attach" in done.stderr


def test_two_logs_in_the_folder_of_a_run_are_not_guessed_between(tmp_path):
    trainer = TRAINERS["skyrl-wandb"]
    for folder, value, seed in each_run(tmp_path):
        trainer.write(folder, rows_of(trainer, value, seed))
        (run,) = (folder / "wandb").iterdir()
        (run.with_name("run-2")).mkdir()
        (run.with_name("run-2") / "x.wandb").write_bytes(b":W&B")
    done = investigate(tmp_path, KL, "--outcome", "reward")
    assert done.exit_code == 2
    assert "holds 2 logs" in done.stderr
