"""A checkup asks every hypothesis that can look at a live trainer, and survives each of them."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from flatline.cli import app
from flatline.config import RunConfig
from flatline.diagnosis.checkup import checkup
from flatline.errors import ConfigError, NotRecorded
from flatline.hypotheses import find
from flatline.hypotheses.base import Hypothesis, Level
from flatline.hypotheses.logprobs import at_equal_weights
from flatline.training.trainer import build
from tests.test_subject import users_trainer

torch.set_num_threads(1)

TINY = RunConfig(
    datasets="lab,,train[:16]",
    eval_limit=0,
    batch_size=8,
    num_generations=4,
    max_steps=2,
    max_new_tokens=64,
    lora_targets="q_proj,v_proj",
)
FLAGS = "--datasets lab,,train[:16] --eval-limit 0 --batch-size 8 --num-generations 4 --max-steps 2"


class Sees(Hypothesis):
    id, name = "H90", "sees"

    def probe(self, subject):
        gap = float(abs(at_equal_weights(subject.trace).gap).max())
        level = Level.OK if gap < 1e-4 else Level.FAULT
        return self.found(level, f"gap {gap}", measured=gap, looked_at=1)


class Breaks(Hypothesis):
    id, name = "H91", "breaks"

    def probe(self, subject):
        raise ZeroDivisionError("a probe of ours")


class Lacks(Hypothesis):
    id, name = "H92", "lacks"

    def probe(self, subject):
        raise NotRecorded("tokens.sampler")


class Fires(Hypothesis):
    id, name = "H93", "fires"
    fix = "type this"

    def probe(self, subject):
        return self.found(Level.FAULT, "it is broken")


class SignOnBatch(Hypothesis):
    id, name, on_one_batch = "H94", "sign-on-batch", True

    def sign(self, trace):
        rollouts = len(trace.rollouts)
        return self.found(Level.OK, f"{rollouts} rollouts", looked_at=rollouts)


class NeedsHistory(Hypothesis):
    id, name = "H95", "needs-history"

    def sign(self, trace):
        raise AssertionError("there is no history")


class FallsBack(SignOnBatch):
    id, name = "H96", "falls-back"

    def probe(self, subject):
        return self.too_little("nothing to see")


ALL = tuple(kind() for kind in (Sees, Breaks, Lacks, Fires, SignOnBatch, NeedsHistory, FallsBack))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    heard = []
    built = build(replace(TINY, output_dir=str(tmp_path_factory.mktemp("run"))))
    found = checkup(built, hypotheses=ALL, on_probe=lambda one: heard.append(one.id))
    return SimpleNamespace(report=found, heard=heard)


def found(report, id):
    return next(one for one in report.report.findings if one.hypothesis == id)


def test_what_fires_comes_first_and_the_rest_is_there_too(report):
    assert report.report.findings[0].hypothesis == "H93"
    assert found(report, "H90").level is Level.OK
    assert found(report, "H94").text == "8 rollouts"


def test_a_probe_that_breaks_cannot_tell_and_stops_nobody(report):
    assert found(report, "H91").level is Level.UNKNOWN
    assert "a probe of ours" in found(report, "H91").text


def test_what_the_trainer_does_not_give_is_said(report):
    assert found(report, "H92").level is Level.UNKNOWN
    assert "`tokens.sampler`" in found(report, "H92").text


def test_where_the_probe_cannot_tell_the_sign_on_the_batch_may(report):
    assert found(report, "H96").level is Level.OK


def test_a_sign_that_needs_history_is_left_out(report):
    assert "H95" not in {one.hypothesis for one in report.report.findings}
    assert report.heard == ["H90", "H91", "H92", "H93", "H94", "H96"]


def test_what_is_not_reached_in_time_is_said(tmp_path):
    """The batch is played and read; no measurement begins after that."""
    looked = (find("H53"), find("H24"), SignOnBatch())
    heard = []
    trainer = users_trainer(tmp_path)
    report = checkup(trainer, budget=0.0, hypotheses=looked, on_probe=lambda one: heard.append(one))
    assert {one.hypothesis: one.level for one in report.findings} == {
        "H94": Level.OK,
        "H53": Level.UNKNOWN,
        "H24": Level.UNKNOWN,
    }
    assert [one.id for one in heard] == ["H94", "H53", "H24"], "what is cheap comes first"
    assert report.caveats == ("Not reached within 0 s: H24, H53.",)
    assert "budget" in next(one.needs for one in report.findings if one.hypothesis == "H53")


def test_a_users_trainer_can_be_looked_at_and_enough_time_reaches_everything(tmp_path):
    found = checkup(users_trainer(tmp_path), budget=1e6, hypotheses=(Sees(), SignOnBatch()))
    levels = {one.hypothesis: one.level for one in found.findings}
    assert levels == {"H90": Level.OK, "H94": Level.OK} and not found.caveats


def test_a_reward_function_that_breaks_is_the_answer(tmp_path):
    trainer = users_trainer(tmp_path)

    def reward(completions, **_):
        raise KeyError("answer")

    trainer.reward_funcs = [reward]
    with pytest.raises(ConfigError, match="KeyError: 'answer'"):
        checkup(trainer, hypotheses=ALL)


# -- the command ------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(app, ["checkup", "musique", *FLAGS.split(), *args])


@pytest.fixture
def few(monkeypatch):
    """The command with few hypotheses, so that a test of the command is one."""
    import flatline.diagnosis.checkup as module

    whole = module.checkup

    def choose(*hypotheses):
        monkeypatch.setattr(
            module, "checkup", lambda built, **kw: whole(built, hypotheses=hypotheses, **kw)
        )

    return choose


def test_the_command_says_by_its_exit_code_whether_it_found_something(few, tmp_path):
    few(Sees())
    result = run("--json", "--output-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["findings"][0]["hypothesis"] == "H90"
    assert printed["subject"] == "musique with lab"
    few(Fires())
    result = run("--output-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "H93 fires" in result.stdout and "type this" in result.stdout


def test_flags_that_training_refuses_are_refused(tmp_path):
    assert run("--num-generations", "1").exit_code == 2


def test_a_dataset_that_gives_no_batch_is_said_so(tmp_path):
    trainer = users_trainer(tmp_path)
    trainer.train_dataset = trainer.train_dataset.select([0])
    with pytest.raises(ConfigError, match="gives no batch"):
        checkup(trainer)
