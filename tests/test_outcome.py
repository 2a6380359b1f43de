"""What a report comes to: silence is no health, and what a run itself shows is not passed over."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.diagnosis.checkup import _first_that_tells, _looks
from flatline.diagnosis.lacking import Origin, next_step, origin_of
from flatline.diagnosis.outcome import COMMON, Outcome
from flatline.diagnosis.renderers.ci.fail_on import FailOn
from flatline.diagnosis.renderers.ci.github import annotations
from flatline.diagnosis.renderers.ci.junit import to_junit
from flatline.diagnosis.renderers.ci.sarif import to_sarif
from flatline.diagnosis.report import Report, diagnose, guarded
from flatline.errors import NotRecorded
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Finding, HasSign, Hypothesis, Level
from flatline.hypotheses.trend import trend_of
from flatline.report.run_page import verdict_of
from flatline.trace import Recorder, Trace
from tests.report_pages import record
from tests.traces import healthy_rows, healthy_trace, run_facts


def log(tmp_path, rewards, **columns):
    path = tmp_path / "log.jsonl"
    rows = ({"step": at, "reward": float(r), **columns} for at, r in enumerate(rewards, start=1))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def noisy(mean, steps=40, spread=0.03):
    rng = np.random.default_rng(0)
    return [mean(step) + rng.normal(0, spread) for step in range(steps)]


def asked(path, *arguments):
    done = CliRunner().invoke(app, ["diagnose", str(path), "--json", *arguments])
    return done.exit_code, json.loads(done.stdout)


def looked_at(levels, **more):
    """A report of the common causes, one level each; the rest is ok."""
    findings = [
        Finding(hypothesis=code, name="x", level=levels.get(code, Level.OK), text="seen")
        for code in COMMON
    ]
    return Report(subject="x", findings=tuple(findings), trend=None, **more)


ROOT = Path(__file__).parents[1]
NOTE = Finding(
    hypothesis="H39",
    name="reward-parser",
    level=Level.NOTE,
    text="7 of 23 answers that equal the gold answer are paid as wrong.",
    points_at_cause=True,
)
RESULTS = json.loads((ROOT / "docs" / "benchmark" / "results.json").read_text())
FALLING = noisy(lambda step: 0.8 - 0.015 * step)
GONE = [max(0.0, 0.8 - 0.03 * step) for step in range(40)]
FLAT = noisy(lambda step: 0.5)


# -- the outcomes


def test_what_is_still_open_is_said_in_the_first_sentence():
    one = looked_at({"H39": Level.UNKNOWN})
    assert one.to_json()["headline"] == (
        "Nothing wrong was found. Still open: whether right answers are paid as wrong."
    )
    two = looked_at({"H04": Level.UNKNOWN, "H39": Level.UNKNOWN}).to_json()["headline"]
    assert two.endswith("whether answers are cut off, and whether right answers are paid as wrong.")
    most = looked_at(dict.fromkeys(COMMON, Level.UNKNOWN)).to_json()["headline"]
    assert most.startswith("There is not enough here")


@pytest.mark.parametrize("rewards", [FALLING, GONE], ids=["falls", "falls to nothing"])
@pytest.mark.parametrize("fail_on", ["suspect", "fault"])
def test_a_reward_that_falls_never_exits_with_0(tmp_path, rewards, fail_on):
    code, told = asked(log(tmp_path, rewards), "--fail-on", fail_on)
    assert (code, told["outcome"]) == (1, "unexplained")
    assert "reward falls" in told["summary"]


@pytest.mark.parametrize("fail_on", ["suspect", "fault"])
def test_a_run_without_a_step_never_exits_with_0(tmp_path, fail_on):
    Recorder(tmp_path / "run").close()
    code, told = asked(tmp_path / "run", "--fail-on", fail_on)
    assert (code, told["outcome"]) == (1, "unexplained")
    assert told["headline"] == "Your trainer never made an optimizer step."
    assert "the training's own output" in told["next"]


@pytest.mark.parametrize("fail_on", ["suspect", "fault"])
def test_a_recording_of_which_part_is_lost_never_exits_with_0(tmp_path, fail_on):
    run = record(tmp_path / "run", rows=healthy_rows(steps=8))
    (rollouts,) = run.glob("rollouts.*.parquet")
    rollouts.write_bytes(rollouts.read_bytes()[:200])
    code, told = asked(run, "--fail-on", fail_on)
    assert (code, told["outcome"]) == (1, "unexplained")
    assert told["headline"] == "Part of your recording could not be read."


def test_an_attached_run_that_played_and_never_stepped_has_made_no_step():
    whole = healthy_trace(steps=3)
    played = Trace.from_batches({"rollouts": whole.rollouts.table.to_batches()}, run=run_facts())
    assert diagnose(played, hypotheses=()).made_no_step
    assert not diagnose(whole, hypotheses=()).made_no_step


def test_a_checkup_is_healthy_only_where_every_common_cause_was_tested():
    assert looked_at({}).outcome is Outcome.HEALTHY
    for code in COMMON:
        assert looked_at({code: Level.UNKNOWN}).outcome is Outcome.NOT_ENOUGH


@pytest.mark.parametrize("look", ["checkup", "diagnosis of 40 steps"])
def test_the_common_causes_can_be_tested_on_nearly_every_healthy_setup_of_the_benchmark(look):
    asked = {one.id for one in HYPOTHESES if _looks(one) and isinstance(one, HasSign)}
    assert asked >= COMMON.keys(), "each can be tested in a run and on a live trainer"
    told = [_unknown(cell, look) for cell in RESULTS["cells"] if cell["cell"]["kind"] == "held-out"]
    assert np.mean([not set(unknown) & set(COMMON) for unknown in told]) > 0.95


def _unknown(cell, look):
    found = cell["checkup"] if look == "checkup" else cell["diagnose"]["40"]
    kept = found["unknown"]
    return RESULTS["lists"][kept["list"]] if isinstance(kept, dict) else kept


def test_a_note_that_names_the_bug_leads_instead_of_an_all_clear():
    quiet = looked_at({})
    report = replace(quiet, findings=(*quiet.findings, NOTE))
    assert report.outcome is Outcome.NOT_ENOUGH
    assert report.summary.startswith("Possible, but not certain: H39 reward-parser. 7 of 23")
    rising = replace(report, trend=trend_of(healthy_trace(steps=20)))
    assert rising.outcome is Outcome.HEALTHY
    assert rising.summary.startswith("Your run learns, with one reservation: H39 reward-parser.")


# -- what every surface makes of it


def test_what_the_run_itself_shows_fails_in_every_format():
    report = looked_at({}, made_no_step=True)
    suite = ElementTree.fromstring(to_junit(report, fail_on=FailOn.FAULT))
    failed = [
        case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["R2 no-step"]
    (result,) = json.loads(to_sarif(report))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("R2", "error")
    (line,) = annotations(report)
    assert line.startswith("::error title=Your trainer never made an optimizer step.::")
    assert verdict_of(report) == "fault"


def test_a_flat_reward_fails_as_a_suspicion_does(tmp_path):
    path = log(tmp_path, FLAT)
    codes = {name: asked(path, "--fail-on", name)[0] for name in ("fault", "suspect", "never")}
    assert codes == {"fault": 0, "suspect": 1, "never": 0}


# -- what is missing, and what to do about it


class Lacks(Hypothesis):
    id, name = "H90", "lacks"

    def __init__(self, column="tokens.sampler"):
        self.column = column

    def sign(self, trace):
        raise NotRecorded(self.column)


def lacking(origin, column="tokens.sampler"):
    one = Lacks(column)
    return guarded(one, one.sign, None, origin=origin)


def test_an_attached_run_is_not_told_to_attach():
    report = diagnose(healthy_trace(steps=2), hypotheses=[Lacks(), Lacks("rollouts.gold")])
    told = [finding.text for finding in report.findings]
    assert not any("flatline.attach" in text for text in told)
    assert "greedy search" in told[0] and "use_vllm=True" in told[0]
    assert "column `answer`" in told[1]


def test_no_hypothesis_tells_an_attached_run_of_steps_and_rollouts_to_attach():
    whole = healthy_trace(steps=8)
    tables = {name: getattr(whole, name).table.to_batches() for name in ("steps", "rollouts")}
    report = diagnose(Trace.from_batches(tables, run=run_facts()))
    assert report.tested < len(report.findings)
    assert not [f.hypothesis for f in report.findings if "flatline.attach" in f.text]
    assert "flatline.attach" not in report.summary


def test_every_origin_has_its_own_words_for_what_is_missing():
    said = {origin: lacking(origin).needs for origin in Origin}
    assert "flatline.attach(trainer" in said[Origin.LOG]
    assert said[Origin.DUMP] == "Record the run with `flatline.Recorder`"
    assert "`log_tokens`" in said[Origin.RECORDER]
    assert said[Origin.ATTACHED] == said[Origin.LIVE] != said[Origin.LOG]


def test_what_nothing_can_be_done_about_asks_for_nothing():
    for origin in (Origin.ATTACHED, Origin.RECORDER):
        finding = lacking(origin, "run.requested.datasets")
        assert finding.needs == "" and finding.text.endswith(".")


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("attach", Origin.ATTACHED),
        ("recorder", Origin.RECORDER),
        ("import:csv", Origin.LOG),
        ("import:verl", Origin.DUMP),
    ],
)
def test_a_trace_says_where_it_comes_from(source, origin):
    assert origin_of({"source": source}) is origin


def test_the_next_step_is_the_one_that_lets_most_be_tested():
    few, many = lacking(Origin.ATTACHED, "rollouts.gold"), lacking(Origin.ATTACHED)
    found = next_step([few, many, many])
    assert found.do.startswith("Sample token by token") and found.causes == 2
    assert next_step([]) is None


def test_of_two_looks_that_cannot_tell_a_checkup_says_the_one_that_can_be_mended():
    class Both(Lacks):
        on_one_batch = True

        def probe(self, subject):
            raise NotRecorded("task.gold")

    both = Both("rollouts.gold")
    (finding,) = _first_that_tells(both, _looks(both), SimpleNamespace(trace=None), Origin.LIVE)
    assert "column `answer`" in finding.text
