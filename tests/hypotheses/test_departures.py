"""Stages of a step as findings: the first that departs, and who explains whom."""

from types import SimpleNamespace

import pytest
from tests.traces import healthy_trace

from flatline.diagnosis.found import explained_by
from flatline.diagnosis.report import rank
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.base import Level
from flatline.hypotheses.departure import CODES, Departure, named_by_the_catalogue
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.live.where.place import Where
from flatline.live.where.tracing import CannotFollow
from flatline.spec import STAGES

LINE = Where(file="train.py", line=7, source="x = -x", function="loss")
EVERY = [one for one in HYPOTHESES if isinstance(one, Departure)]
stages = pytest.mark.parametrize("one", EVERY, ids=lambda one: one.stage)


def subject(stage: str, found: StageFound) -> SimpleNamespace:
    others = {name: same(name, "as specified") for name in STAGES}
    return SimpleNamespace(
        departures=lambda: others | {stage: found},
        lines_of=lambda found: (LINE,),
        trace=healthy_trace(steps=1),
    )


def test_every_stage_but_the_rows_has_its_own_code():
    assert {one.stage: one.id for one in EVERY} == CODES
    assert set(STAGES) - set(CODES) == {"rows"}


@stages
def test_it_fires_with_an_example(one):
    found = one.probe(subject(one.stage, departs(one.stage, "it is another", "look here")))
    assert found.level is Level.FAULT
    assert found.text == "it is another" and found.evidence[0].text == "look here"
    assert found.where == (LINE,)


@stages
def test_it_says_why_no_line_was_looked_for(one):
    looked_at = subject(one.stage, departs(one.stage, "it is another"))

    def refuse(found):
        raise CannotFollow("a debugger is following the code")

    looked_at.lines_of = refuse
    found = one.probe(looked_at)
    assert found.level is Level.FAULT and not found.where


def test_a_cause_of_the_catalogue_points_where_the_first_stage_was_made():
    first = find("H51").probe(subject("mask", departs("mask", "")))
    cause = find("H09").found(Level.FAULT, "the loss mask is the attention mask")
    named = named_by_the_catalogue([cause, find("H02").found(Level.OK, ""), first], HYPOTHESES)
    assert [one.where for one in named] == [(LINE,), (), (LINE,)]


@stages
def test_it_is_silent_where_the_stage_is_as_specified(one):
    assert one.probe(subject("rows", same("rows", ""))).level is Level.OK


@stages
def test_it_says_why_it_cannot_tell(one):
    found = one.probe(subject(one.stage, unknown(one.stage, "Not specified: the loss 'x'.")))
    assert found.level is Level.UNKNOWN


@stages
def test_what_accounts_for_it_is_no_consequence_of_it(one):
    found = one.probe(subject(one.stage, departs(one.stage, "")))
    assert not set(found.explains) & set(one.named_by)
    assert {find(code).id for code in one.named_by} == set(one.named_by)


def test_the_first_stage_is_the_cause_of_the_later_ones_and_of_look_alikes():
    departing = {name: departs(name, "") for name in ("advantages", "gradient")}
    looked_at = SimpleNamespace(departures=lambda: departing, lines_of=lambda found: (LINE,))
    first, later = (find(CODES[name]).probe(looked_at) for name in departing)
    rate = find("H24").found(Level.FAULT, "too high", severity=9)
    found = rank(named_by_the_catalogue([rate, later, first], HYPOTHESES))
    assert found[0].hypothesis == "H53"
    assert explained_by(found) == {"H57": "H53", "H24": "H53"}


def test_a_hypothesis_that_accounts_for_a_stage_is_named_before_it():
    stage = find("H54").probe(subject("log-probs", departs("log-probs", "")))
    padding = find("H15").found(Level.SUSPECT, "padding is seen")
    found = rank(named_by_the_catalogue([stage, padding], HYPOTHESES))
    assert [one.hypothesis for one in found] == ["H15", "H54"]


def test_what_only_chance_could_show_is_suspected():
    found = StageFound(stage="rewards", departs=True, text="shifted", by_chance=1e-4)
    assert find("H52").probe(subject("rewards", found)).level is Level.SUSPECT


def test_a_later_stage_explains_nothing_of_the_catalogue():
    """Else a cause would be its consequence's consequence, and nothing would be a cause."""
    departing = {name: departs(name, "") for name in ("loss", "gradient")}
    looked_at = SimpleNamespace(departures=lambda: departing, lines_of=lambda found: (LINE,))
    loss, gradient = (find(CODES[name]).probe(looked_at) for name in departing)
    passes = find("H28").found(Level.FAULT, "four times as long")
    found = rank(named_by_the_catalogue([gradient, loss, passes], HYPOTHESES))
    assert [one.hypothesis for one in found] == ["H28", "H56", "H57"]
    assert explained_by(found) == {"H56": "H28", "H57": "H56"}
