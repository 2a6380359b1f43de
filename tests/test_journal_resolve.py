"""Solved or not: each of the five criteria holds when it should, and only then."""

import pytest

from flatline.journal import record
from flatline.journal.resolve import NAMES, judge, resolve
from tests.journals import TREATED, curves_of, journal_at, plan_of, result_of, verdict_of


def holds(journal):
    return [criterion.holds for criterion in judge(journal).criteria]


def solved(path, **more):
    journal = journal_at(path)
    given = {"plan": plan_of(), "result": result_of(), "curves": curves_of()} | more
    record(journal, given["plan"], given["result"], verdict_of(), given["curves"])
    return journal


def full_scale(name="full", **change):
    plan = plan_of(name)
    for arm in plan["arms"]:
        arm["config"] |= change
    return plan


def test_a_debug_run_alone_is_not_enough(tmp_path):
    journal = solved(tmp_path)
    assert holds(journal) == [True, True, True, True, False]
    resolution = resolve(journal)
    assert not resolution.resolved and resolution.summary.startswith("Not resolved yet: 4 of 5")
    readme = (tmp_path / "README.md").read_text()
    assert f"1. ✅ **{NAMES[0]}.**" in readme and f"5. ❌ **{NAMES[4]}.**" in readme


@pytest.mark.parametrize(
    "plan",
    [full_scale(max_steps=200), full_scale(model="Qwen/Qwen2.5-7B"), plan_of("f", scale="full")],
)
def test_it_is_resolved_once_it_holds_at_full_scale(tmp_path, plan):
    journal = solved(tmp_path)
    record(journal, plan, result_of(), verdict_of(), curves_of())
    assert resolve(journal).resolved
    assert "**Resolved: all 5 criteria hold" in (tmp_path / "README.md").read_text()


def test_a_full_scale_run_that_does_not_validate_does_not_count(tmp_path):
    journal = solved(tmp_path)
    plan = full_scale(max_steps=200)
    record(journal, plan, result_of(), verdict_of("inconclusive"), curves_of())
    assert not holds(journal)[4]


def test_a_shorter_run_is_not_full_scale(tmp_path):
    journal = solved(tmp_path)
    record(journal, full_scale(max_steps=10), result_of(), verdict_of(), curves_of())
    assert not holds(journal)[4]


@pytest.mark.parametrize("curves", [curves_of(rise=0.0), curves_of(steps=4), {}, None])
def test_a_flat_or_missing_curve_does_not_rise(tmp_path, curves):
    assert holds(solved(tmp_path, curves=curves))[0] is False


def test_one_seed_that_stays_flat_is_enough_to_doubt(tmp_path):
    curves = curves_of()
    curves[f"{TREATED}-1"] = curves_of(rise=0.0)[f"{TREATED}-1"]
    assert holds(solved(tmp_path, curves=curves))[0] is False


def test_two_seeds_are_not_several(tmp_path):
    assert holds(solved(tmp_path, result=result_of(2)))[2] is False


def test_a_seed_that_got_worse_is_not_reproduced(tmp_path):
    result = result_of()
    for run in result["runs"]:
        if run["arm"] == TREATED and run["seed"] == 1:
            run["after"] = 0.1
    assert holds(solved(tmp_path, result=result))[1:3] == [False, False]


def test_runs_that_failed_do_not_count(tmp_path):
    result = result_of()
    result["runs"][-1]["status"] = "failed"
    assert holds(solved(tmp_path, result=result))[2] is False


def test_a_mechanism_that_stays_explains_nothing(tmp_path):
    journal = journal_at(tmp_path)
    stays = {"control": "present", "treated": "present", "direct": True, "text": ""}
    record(journal, plan_of(), result_of(), verdict_of(mechanism=stays), curves_of())
    assert holds(journal)[3] is False


def test_without_a_validated_cause_nothing_holds(tmp_path):
    journal = journal_at(tmp_path)
    record(journal, plan_of(), result_of(), verdict_of("partial"), curves_of())
    assert holds(journal) == [False] * 5
    assert "no hypothesis has been validated" in judge(journal).summary


def test_a_run_without_held_out_reward_is_survived(tmp_path):
    result = result_of()
    for run in result["runs"]:
        run["before"] = None
    assert holds(solved(tmp_path, result=result))[1:3] == [False, False]


def test_a_failed_positive_control_is_no_mended_setup(tmp_path):
    journal = journal_at(tmp_path)
    plan = plan_of("ladder", "H00")
    plan["arms"] = plan["arms"][:1]
    record(journal, plan, {"runs": []}, verdict_of(code="H00"), None)
    assert judge(journal).experiment is None
    assert "No arm was fixed" in (tmp_path / "fixes/h00-positive-control.md").read_text()
