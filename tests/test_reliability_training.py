"""Errors of the recorder never reach a training; a training that was ended is gone on with."""

import io
import json
import os
import signal
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

import flatline
from flatline.live.hooks import Guard, Once
from flatline.training import run
from flatline.training.run import train
from tests.test_attach import trainer_of
from tests.test_training import tiny

sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "reliability"))

import recorder_faults

# -- the recorder -----------------------------------------------------------------------------


def test_an_error_in_any_function_of_the_recorder_leaves_the_training_as_it_is(tmp_path):
    """Of every fifteenth; `make quality` strikes them all."""
    train = recorder_faults.pretended
    plain, codes = train(tmp_path / "plain", None), recorder_faults.reached(tmp_path / "all", train)
    names = {code.co_qualname for code in codes}
    assert {"StepWatch.on_log", "Attachment._compute_loss", "Scribe.passed"} <= names
    assert len(names) > 100
    for at, code in enumerate(codes[::15]):
        assert not recorder_faults.struck(tmp_path / str(at), code, plain, train), code.co_qualname


def test_what_is_called_for_the_trainer_is_called_once_however_a_hook_ends():
    calls = []

    def original(value):
        calls.append(value)
        return value + 1

    def before(method, value):
        raise ValueError("ours")

    def after(method, value):
        method(value)
        raise ValueError("ours")

    with redirect_stderr(io.StringIO()) as said:
        for hook in (before, after):
            guard = Guard()
            assert Once(original, guard).through(hook, 1) == 2
            assert guard.broken
    assert calls == [1, 1]
    assert said.getvalue().count("recording stopped") == 2


def test_an_error_of_the_trainers_own_passes_through_and_stops_no_recording():
    guard = Guard()

    def original():
        raise KeyError("theirs")

    def hook(method):
        try:
            method()
        finally:
            raise ValueError("ours")

    with pytest.raises(KeyError, match="theirs"):
        Once(original, guard).through(hook)
    assert not guard.broken


def test_the_message_of_a_stopped_recording_need_not_reach_anybody(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    class Nameless(Exception):
        def __str__(self):
            raise RuntimeError("not even a text")

    guard = Guard()
    monkeypatch.setattr(sys, "stderr", type("Full", (), {"write": full, "flush": full})())
    guard(lambda: full())
    assert guard.broken
    Guard().stop(Nameless())


def test_the_rollouts_of_a_step_are_safe_before_its_evaluation_begins(tmp_path):
    seen = []

    class Look(TrainerCallback):
        """Told of the end of a step after the recorder, and before anything is logged."""

        def on_step_end(self, args, state, control, **kwargs):
            trace = flatline.Trace.open(tmp_path / "run")
            seen.append((state.global_step, len(trace.rollouts), len(trace.steps)))

    trainer = trainer_of(tmp_path)
    flatline.attach(trainer, tmp_path / "run")
    trainer.add_callback(Look())
    trainer.train()
    assert seen == [(1, 4, 0), (2, 8, 1)]


def test_a_held_out_reward_of_a_step_that_is_not_logged_is_in_its_row(tmp_path):
    class Evaluate(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.log({"eval_reward": 0.5 * state.global_step})

    trainer = trainer_of(tmp_path, logging_steps=10, max_steps=3)
    trainer.add_callback(Evaluate())
    flatline.attach(trainer, tmp_path / "run")
    trainer.train()
    steps = flatline.Trace.open(tmp_path / "run").steps
    assert steps["step"].tolist() == [1, 2, 3]
    assert steps["heldout_reward"].tolist() == [0.5, 1.0, 1.5]


# -- the training -----------------------------------------------------------------------------


def test_a_terminated_training_is_kept_and_resumed_without_a_step_too_many(
    tmp_path, monkeypatch, capfd
):
    class Terminate(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    add = run._add_callbacks

    def add_and_terminate(built):
        built.trainer.add_callback(Terminate())
        return add(built)

    monkeypatch.setattr(run, "_add_callbacks", add_and_terminate)
    config = tiny(tmp_path, max_steps=1, batch_size=4, eval_limit=2)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    assert signal.getsignal(signal.SIGTERM) is before
    assert "Step 1 is saved" in capfd.readouterr().err
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(run, "_add_callbacks", add)
    result = train(replace(config, resume_from_checkpoint="last"))
    assert "was not closed; it goes on from" in capfd.readouterr().err
    assert result.steps == 1
    assert [score.step for score in result.scores] == [0, 1]
    assert (tmp_path / "model").is_dir()
    assert flatline.Trace.open(tmp_path).steps["step"].tolist() == [0, 1]


def test_a_server_that_is_lost_is_no_full_disk():
    assert not run._is_of_the_disk(ConnectionError("the server is gone"))
    assert not run._is_of_the_disk(ValueError("x"))
    assert run._is_of_the_disk(OSError(28, "No space left on device"))


def test_a_run_that_broke_off_is_said_before_another_takes_its_place(tmp_path, capsys):
    def said(checkpoint=None):
        run._say_what_broke_off(tmp_path, checkpoint)
        return capsys.readouterr().err

    assert said() == ""
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "ended": None}))
    assert "left no checkpoint; this one starts again" in said()
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / "trainer_state.json").write_text('{"global_step": 7}')
    assert "would go on from" in said() and "takes its place" in said()
    assert "it goes on from" in said(str(tmp_path / "checkpoint-7"))
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "ended": "2026-01-01"}))
    assert said() == ""
    (tmp_path / "run.json").write_text("{")
    assert said() == ""


def test_half_a_model_is_never_taken_for_a_whole_one(tmp_path):
    def saving(folder):
        Path(folder).mkdir()
        (Path(folder) / "weights").write_text("half")
        raise KeyboardInterrupt

    trainer = SimpleNamespace(
        save_model=saving,
        accelerator=SimpleNamespace(wait_for_everyone=lambda: None, is_main_process=True),
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("of the run before")
    with pytest.raises(KeyboardInterrupt):
        run._save_model(trainer, tmp_path / "model")
    assert (tmp_path / "model" / "weights").read_text() == "of the run before"
    trainer.save_model = lambda folder: (Path(folder) / "weights").write_text("whole")
    run._save_model(trainer, tmp_path / "model")
    assert (tmp_path / "model" / "weights").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_processes_that_look_at_once_whether_a_folder_can_be_written_all_may(tmp_path, monkeypatch):
    write = Path.write_bytes

    def other_was_faster(path, data):
        write(path, data)
        path.unlink()

    monkeypatch.setattr(Path, "write_bytes", other_was_faster)
    run.refuse_unwritable(tmp_path)


def test_two_recordings_of_one_seed_differ_in_time_alone(tmp_path):
    import same

    for name in ("a", "b"):
        trainer = trainer_of(tmp_path / name, beta=0.1)
        flatline.attach(trainer, tmp_path / name / "run")
        torch.manual_seed(3)
        trainer.train()
    allowed, bad, total = same.compared(tmp_path / "a" / "run", tmp_path / "b" / "run")
    assert bad == []
    assert total > 100
    assert {name.split(".")[-1] for name in allowed} >= {"time", "seconds"}
