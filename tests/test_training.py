"""Training on the lab policy, a few small steps at a time."""

import io
import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from rich.console import Console

from flatline.config import RunConfig
from flatline.errors import ConfigError, DataError
from flatline.heldout import read_scores
from flatline.tasks.base import Score
from flatline.trace import Trace
from flatline.training.effective import check_arguments
from flatline.training.heldout import HeldOut
from flatline.training.progress import ProgressDisplay
from flatline.training.run import train
from flatline.training.trainer import build
from tests import warm

torch.set_num_threads(1)

TINY = RunConfig(
    datasets="lab,,train[:24]",
    eval_datasets="lab,,validation[:6]",
    batch_size=8,
    num_generations=4,
    max_steps=2,
    max_new_tokens=64,
    lora_targets="q_proj,v_proj",
)


def tiny(folder: Path, **changes) -> RunConfig:
    return replace(TINY, output_dir=str(folder), **changes)


def lines(result) -> list[dict]:
    return [line for line in result.log if "grad_norm" in line]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_iterations": 2},
        {"peft": False, "sampler_weights": "live"},
        {"sampler_weights": "copy", "temperature": 0.7},
    ],
)
def test_sampler_and_trainer_agree_and_the_reference_is_the_start(tmp_path, changes):
    steps = lines(train(tiny(tmp_path, kl_beta=0.04, eval_limit=0, **changes)))
    sampled = steps[:: changes.get("num_iterations", 1)]
    assert all(one["debug/logprob_gap_max"] <= 1e-4 for one in sampled)
    assert steps[0]["debug/ratio_off_max"] <= 1e-5 and steps[0]["kl"] <= 1e-9
    assert steps[1]["kl"] > 0, "the second pass has moved away from the reference"


@pytest.mark.parametrize("peft", [True, False])
def test_at_learning_rate_zero_no_bit_changes(tmp_path, peft):
    built = build(tiny(tmp_path, learning_rate=0.0, peft=peft, eval_limit=0))
    before = {n: p.detach().clone() for n, p in built.trainer.model.named_parameters()}
    built.trainer.train()
    after = dict(built.trainer.model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_reward_that_is_no_number_stops_the_run_and_keeps_the_last_step(tmp_path, monkeypatch):
    built = build(tiny(tmp_path))
    episode = type(built.task.episode(built.problems[0]))
    plays = {"n": 0}

    def score(self, final):
        plays["n"] += 1
        bad = plays["n"] > len(built.problems) + TINY.batch_size + 2
        return Score(reward=float("nan") if bad else plays["n"] / 100, parts={"f1": 0.0})

    monkeypatch.setattr(episode, "score", score)
    with pytest.raises(DataError, match="not a number"):
        train(tiny(tmp_path, eval_limit=0))
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").is_file()


def test_the_seed_decides_the_run_and_nothing_else_does(tmp_path):
    few = {"max_steps": 1, "eval_limit": 3}
    a, b = (train(tiny(tmp_path / name, **few)) for name in "ab")
    c = train(tiny(tmp_path / "c", seed=1, **few))
    keys = ("reward", "grad_norm", "loss")
    pick = lambda result: [[line[k] for k in keys] for line in lines(result)]  # noqa: E731
    assert pick(a) == pick(b) != pick(c)
    assert a.scores == b.scores
    assert a.scores[0] == c.scores[0], "held-out problems and random numbers do not depend on it"


KILLED = """
import os, signal, sys
from transformers import TrainerCallback
from flatline.config import RunConfig
from flatline.training import run
import torch; torch.set_num_threads(1)

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

add = run._add_callbacks
def add_and_kill(built):
    built.trainer.add_callback(Kill())
    return add(built)
run._add_callbacks = add_and_kill
import json
run.train(RunConfig.from_dict(json.loads(sys.argv[1])))
"""


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    settings = {"max_steps": 3, "save_steps": 1, "eval_steps": 1, "eval_limit": 2}
    whole = train(tiny(tmp_path / "whole", **settings))
    config = tiny(tmp_path / "killed", **settings)
    killed, words = warm.run(KILLED, json.dumps(config.to_dict()), folder=tmp_path)
    assert killed == -signal.SIGKILL, words[-2000:]
    (tmp_path / "killed" / "checkpoint-2").mkdir()  # as if the kill had met a half-written one
    resumed = train(replace(config, resume_from_checkpoint="last"))
    timed = ("time", "runtime", "per_second")
    for a, b in zip(lines(whole), lines(resumed), strict=True):
        same = {k: v for k, v in a.items() if not any(word in k for word in timed)}
        assert same == {k: b[k] for k in same}
    assert whole.scores == resumed.scores
    assert [score.step for score in read_scores(tmp_path / "killed")] == [0, 1, 2, 3]


@pytest.mark.parametrize("now", [["a"], ["a", "c"]])
def test_resuming_with_other_held_out_problems_is_refused_and_says_what_to_type(tmp_path, now):
    kept = {"step": 0, "problems": ["a", "b"], "rewards": [0.0, 1.0]}
    (tmp_path / "heldout.jsonl").write_text(json.dumps(kept) + "\n")
    rollouts = SimpleNamespace(config=tiny(tmp_path, eval_samples=1))

    def held_out(ids):
        return HeldOut(None, rollouts, [SimpleNamespace(id=id) for id in ids], seed=0)

    with pytest.raises(ConfigError, match="--eval-limit 2 --eval-samples 1"):
        held_out(now).take_up(2)
    same = held_out(["b", "a"])
    same.take_up(2)
    assert [one.step for one in same.scores] == [0]


def test_two_processes_do_what_one_would(tmp_path):
    both = {"loss_type": "dapo", "eval_limit": 2}
    one = train(tiny(tmp_path / "one", **both))
    config = tiny(tmp_path / "two", batch_size=TINY.batch_size // 2, save_steps=2, **both)
    code = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from flatline.config import RunConfig\n"
        "from flatline.training.run import train\n"
        "train(RunConfig.from_dict(json.loads(sys.argv[1])))\n"
    )
    two, words = warm.run_two(code, json.dumps(config.to_dict()), folder=tmp_path)
    assert two == 0, words[-2000:]
    state = json.loads((tmp_path / "two" / "checkpoint-2" / "trainer_state.json").read_text())
    steps = [line for line in state["log_history"] if "grad_norm" in line]
    for name in ("loss", "grad_norm", "reward", "entropy", "debug/advantage_max"):
        assert [line[name] for line in steps] == pytest.approx(
            [line[name] for line in lines(one)], rel=1e-4, abs=1e-6
        )
    assert read_scores(tmp_path / "two")[0] == one.scores[0]


def test_documents_that_would_not_fit_are_dropped_and_recorded(tmp_path):
    built = build(tiny(tmp_path, max_prompt_length=90, eval_limit=0))
    built.trainer.train()
    cut = _first_batch(built)
    assert any(turn.dropped for rollout in cut for turn in rollout.turns)
    assert all(_longest_prompt(rollout) <= 90 for rollout in cut)
    assert built.trainer.state.log_history[0]["debug/context_truncation_rate"] > 0


def _first_batch(built):
    from flatline.rollout.engine import Job

    with built.rollouts.playing(built.trainer) as engine:
        return engine.play([Job(p, s) for p in built.problems[:8] for s in range(2)], seed=1)


def _longest_prompt(rollout) -> int:
    """Tokens before the last turn of the model."""
    written = [i for i, author in enumerate(rollout.authors) if author == 1]
    starts = [i for i in written if i == 0 or rollout.authors[i - 1] != 1]
    return len(rollout.prompt_ids) + max(starts)


def test_the_seeds_metrics_and_whole_trajectories_are_logged(tmp_path):
    result = train(tiny(tmp_path, log_completions=True, max_steps=1))
    line = lines(result)[0]
    for name in ("advantage_max", "advantage_mean", "reward_std", "context_length_mean"):
        assert line[f"debug/{name}"] > 0
    assert line["debug/context_truncation_rate"] == 0
    for kind in ("mean", "std", "grad_norm"):
        assert f"lora/model.layers.0.self_attn.q_proj.lora_A_{kind}" in line
    assert {"time/sampling", "time/scoring", "time/backward"} <= set(line)
    assert any("eval_combined" in entry for entry in result.log)
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert len(table) == TINY.batch_size
    turns = json.loads(table["trajectory"][0])
    assert turns[0]["observations"] or len(turns) == 1
    saved = json.loads((tmp_path / "run.json").read_text())
    assert saved["requested"]["lora_r"] == saved["effective"]["lora"]["r"]
    trace = Trace.open(tmp_path)
    assert set(trace.groups().size) == {TINY.num_generations}, "a batch is whole groups"
    assert len(set(trace.rollouts["completion"])) > TINY.num_generations, "samples differ"


def test_without_a_terminal_every_log_step_is_a_line():
    out = io.StringIO()
    display = ProgressDisplay(Console(file=out, force_terminal=False))
    state = SimpleNamespace(global_step=2, max_steps=4, is_world_process_zero=True)
    display.on_train_begin(None, state, None)
    display.on_log(None, state, None, logs={"reward": 0.25, "grad_norm": 0.1})
    display.on_log(None, state, None, logs={"train_runtime": 1.0})
    assert out.getvalue() == "step 2/4  reward 0.25  grad norm 0.1\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 10}, "no whole groups"),
        ({"datasets": "lab,,train[:3]", "batch_size": 16}, "has 3 problems, and a step needs 4"),
        ({"report_to": "wandb, no_such_tracker"}, "not installed"),
        ({"lora_targets": "no_such_layer"}, "matches no layer"),
        ({"engine": "vllm-colocate"}, "needs vllm"),
        ({"engine": "vllm-server", "vllm_url": "http://127.0.0.1:9"}, "No vLLM server answers"),
    ],
)
def test_what_can_be_known_before_the_first_step_is_refused_before_it(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        train(tiny(tmp_path, **changes))


def test_a_full_disk_says_where_the_run_stopped(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flatline.training.trainer.Trainer.save_model", full)
    with pytest.raises(ConfigError, match="No space left"):
        train(tiny(tmp_path, max_steps=1, eval_limit=0))


def test_a_changed_argument_is_noticed(tmp_path):
    built = build(tiny(tmp_path))
    check_arguments(built.trainer, built.arguments)
    built.trainer.args.loss_type = "dapo"
    with pytest.raises(ConfigError, match="loss_type: asked for 'grpo', but it is 'dapo'"):
        check_arguments(built.trainer, built.arguments)
