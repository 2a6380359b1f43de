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


def runs_with(wanted, **changes):
    """A result some of whose runs came out otherwise."""
    result = result_of()
    for at, run in enumerate(result["runs"]):
        if wanted(at - len(result["runs"]), run):
            run |= changes
    return {"result": result}


ONE_FLAT = curves_of() | {f"{TREATED}-1": curves_of(rise=0.0)[f"{TREATED}-1"]}


@pytest.mark.parametrize(
    ("change", "unmet"),
    [
        ({"curves": curves_of(rise=0.0)}, {0}),
        ({"curves": curves_of(steps=4)}, {0}),
        ({"curves": {}}, {0}),
        ({"curves": None}, {0}),
        ({"curves": ONE_FLAT}, {0}),
        ({"result": result_of(2)}, {2}),
        (runs_with(lambda at, run: (run["arm"], run["seed"]) == (TREATED, 1), after=0.1), {1, 2}),
        (runs_with(lambda at, run: at == -1, status="failed"), {2}),
        (runs_with(lambda at, run: True, before=None), {1, 2}),
    ],
)
def test_flat_curves_few_seeds_and_runs_that_failed_or_got_worse_do_not_hold(
    tmp_path, change, unmet
):
    found = holds(solved(tmp_path, **change))
    assert not any(found[at] for at in unmet)


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
