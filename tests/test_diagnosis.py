"""Findings become a report: causes before symptoms, and no hypothesis can spoil the others."""

import json

import numpy as np
import pytest

from flatline.diagnosis.found import explained_by
from flatline.diagnosis.lacking import Origin
from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import Report, diagnose, guarded, rank
from flatline.errors import NotRecorded
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import ALARMS, HasSign, Hypothesis, Level
from flatline.trace import Trace
from tests.traces import healthy_trace, run_facts


def hypothesis(
    code, level=Level.OK, *, explains=(), severity=1.0, raises=None, proven=False, measured=None
):
    """One that always finds the same."""

    class Fixed(Hypothesis):
        id, name = code, f"name-{code}"

        def sign(self, trace):
            if raises:
                raise raises
            return self.found(
                level,
                f"text of {code}",
                severity=severity,
                measured=measured,
                proven=proven,
                looked_at=1,
            )

    found = Fixed()
    found.explains = explains
    return found


def report_of(*hypotheses, trace=None):
    return diagnose(trace or healthy_trace(steps=2), hypotheses=hypotheses)


def order(report):
    return [finding.hypothesis for finding in report.findings]


def test_alarms_come_first_then_the_surer_then_the_further_beyond_its_threshold():
    report = report_of(
        hypothesis("H1", Level.OK),
        hypothesis("H2", Level.UNKNOWN),
        hypothesis("H3", Level.SUSPECT, severity=2.0),
        hypothesis("H4", Level.SUSPECT, severity=9.0),
        hypothesis("H5", Level.FAULT),
        hypothesis("H6", Level.NOTE),
    )
    assert order(report) == ["H5", "H4", "H3", "H6", "H1", "H2"]


def test_silence_over_a_damaged_run_is_no_all_clear():
    trace = healthy_trace(steps=6)
    trace.warnings.append("rollouts.r0.0.parquet: row group 0 is lost")
    trace.run["notes"] = ["Step 5 occurs more than once."]
    report = report_of(hypothesis("H1", Level.OK), trace=trace)
    assert report.outcome is Outcome.UNEXPLAINED
    assert report.summary.startswith("Part of your recording could not be read.")
    told = report.to_json()
    assert told["damaged"]
    assert told["outcome"] == "unexplained"
    assert told["caveats"] == [*trace.warnings, *trace.run["notes"]]


def test_a_falling_reward_that_nothing_explains_is_not_called_fine():
    steps = [{"step": s, "reward": 1.0 - 0.02 * s + 0.01 * (s % 3)} for s in range(1, 31)]
    report = report_of(hypothesis("H1", Level.OK), trace=Trace.from_rows(steps=steps))
    assert "falls by" in report.summary
    assert report.outcome is Outcome.UNEXPLAINED
    assert report.summary.startswith("Your reward falls, and no cause that could be tested")
    assert "All 1 causes could be tested" in report.summary
    assert [(one.name, one.level) for one in report.troubles] == [("reward-falls", Level.FAULT)]


def test_a_choice_made_when_reading_is_told_and_is_no_damage():
    trace = healthy_trace(steps=6)
    trace.run["notes"] = ["`reward` is 'train/reward', not 'reward'."]
    report = report_of(hypothesis("H1", Level.OK), trace=trace)
    assert report.outcome is Outcome.HEALTHY
    assert report.caveats == ("`reward` is 'train/reward', not 'reward'.",)


def test_a_symptom_goes_behind_its_cause_even_where_it_is_surer():
    report = report_of(
        hypothesis("H3", Level.FAULT),
        hypothesis("H9", Level.SUSPECT, explains=("H3",)),
    )
    assert order(report) == ["H9", "H3"]
    assert [finding.hypothesis for finding in report.causes] == ["H9"]
    assert report.to_json()["explained_by"] == {"H3": "H9"}


def test_what_is_proven_is_a_cause_of_its_own():
    report = report_of(
        hypothesis("H9", Level.FAULT, explains=("H3", "H4"), severity=9.0),
        hypothesis("H3", Level.FAULT, proven=True),
        hypothesis("H4", Level.FAULT),
    )
    assert [finding.hypothesis for finding in report.causes] == ["H9", "H3"]


def test_only_an_alarm_explains_another():
    quiet = report_of(hypothesis("H3", Level.FAULT), hypothesis("H9", Level.OK, explains=("H3",)))
    assert [finding.hypothesis for finding in quiet.causes] == ["H3"]


def test_of_two_causes_the_surer_one_is_named():
    findings = report_of(
        hypothesis("H3", Level.SUSPECT),
        hypothesis("H8", Level.SUSPECT, explains=("H3",)),
        hypothesis("H9", Level.FAULT, explains=("H3",)),
    ).findings
    assert explained_by(findings) == {"H3": "H9"}


def test_alarms_that_explain_each_other_are_not_lost():
    report = report_of(
        hypothesis("H1", Level.FAULT, explains=("H2",)),
        hypothesis("H2", Level.FAULT, explains=("H1",)),
    )
    assert len(report.causes) == 2
    assert "H1" in report.summary


def test_a_severity_that_is_no_number_does_not_spoil_the_order():
    findings = [
        hypothesis(f"H{at}", Level.SUSPECT, severity=value).sign(None)
        for at, value in enumerate([1.0, np.nan, 3.0, np.inf, 2.0])
    ]
    assert [f.hypothesis for f in rank(findings)] == ["H1", "H3", "H2", "H4", "H0"]


def test_what_is_not_recorded_cannot_be_told_and_the_column_is_named():
    finding = guarded(*looking(NotRecorded("tokens.trainer")), origin=Origin.LOG)
    assert finding.level is Level.UNKNOWN
    assert "`tokens.trainer`" in finding.text


def test_a_hypothesis_that_trips_does_not_cost_the_others():
    report = report_of(hypothesis("H1", raises=ZeroDivisionError("by zero")), hypothesis("H2"))
    tripped = next(f for f in report.findings if f.hypothesis == "H1")
    assert tripped.level is Level.UNKNOWN
    assert "ZeroDivisionError" in tripped.text
    assert report.tested == 1


def looking(error):
    one = hypothesis("H1", raises=error)
    return one, one.sign, None


def test_meaning_fix_and_explanations_belong_to_alarms_only():
    quiet = hypothesis("H1", Level.OK, explains=("H2",))
    quiet.meaning = quiet.fix = "something"
    finding = quiet.sign(None)
    assert (finding.meaning, finding.fix, finding.explains) == ("", "", ())


def test_the_report_names_what_was_looked_at():
    named = diagnose(healthy_trace(steps=1), hypotheses=(), name="runs/x")
    assert isinstance(named, Report)
    assert named.subject == "runs/x"
    assert diagnose(Trace.from_rows(run={}), hypotheses=()).subject == "this run"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_measurement_that_is_no_number_is_null_in_json(value):
    assert hypothesis("H1", measured=float(value)).sign(None).to_json()["measured"] is None


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"steps": 1},
        {"steps": 3},
        {"steps": 30},
        {"generations": 4},
        {"generations": 16, "prompts": 4},
        {"steps": 30, "gain": 0.0},
        {"steps": 20, "bf16": True},
        {"steps": 20, "lora": {"r": 8, "alpha": 16, "dropout": 0.0, "targets": []}},
        {"beta": 0.0},
    ],
)
def test_a_healthy_run_raises_no_alarm(shape):
    assert [finding.text for finding in diagnose(healthy_trace(**shape)).alarms] == []


def test_the_report_of_every_hypothesis_is_json_and_none_trips():
    report = diagnose(healthy_trace(steps=20))
    shape = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert shape["version"] == 1
    assert len(shape["findings"]) == sum(isinstance(h, HasSign) for h in HYPOTHESES)
    assert not any("defect of flatline" in finding.text for finding in report.findings)


def test_an_empty_trace_can_be_looked_at():
    report = diagnose(Trace.from_rows(run=run_facts()))
    assert report.trend is None
    assert not any("defect of flatline" in finding.text for finding in report.findings)
    assert all(finding.level not in ALARMS for finding in report.findings)


def test_no_hypothesis_is_its_own_symptom():
    explains = {one.id: set(one.explains) for one in HYPOTHESES}
    reached = {code: set(found) for code, found in explains.items()}
    for _ in explains:
        for code in reached:
            reached[code] |= {far for near in reached[code] for far in explains.get(near, set())}
    assert [code for code, found in reached.items() if code in found] == []
