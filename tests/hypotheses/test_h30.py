"""H30: the entropy falls and groups die with it."""

import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.config import RunConfig
from flatline.hypotheses.base import Level
from flatline.hypotheses.h30_entropy_collapse import EntropyCollapse
from flatline.trace import Trace

H30 = EntropyCollapse()


def collapsing(to, *, dead=0.9, gain=0.0, steps=12):
    """The entropy goes from 1 to a level, and groups die."""
    rows = healthy_rows(steps=steps, gain=gain)
    for row in rows["steps"][1:]:
        late = row["step"] > steps // 3
        row["entropy"] = (to if late else 1.0) * (1 + 0.01 * (row["step"] % 2))
        row["zero_std_share"] = (dead if late else 0.0) + 0.01 * (row["step"] % 2)
    return Trace.from_rows(run=run_facts(), **rows)


def test_an_entropy_that_falls_with_the_groups_is_suspected():
    finding = H30.sign(collapsing(0.05))
    assert finding.level is Level.SUSPECT
    assert "equal rewards" in finding.text


def test_a_fall_alone_is_noted():
    assert H30.sign(collapsing(0.05, dead=0.1)).level is Level.NOTE
    assert H30.sign(collapsing(0.05, gain=0.5)).level is Level.NOTE


def test_an_entropy_that_stays_is_fine():
    assert H30.sign(collapsing(0.5)).level is Level.OK
    assert H30.sign(healthy_trace(steps=12)).level is Level.OK


def test_few_steps_say_nothing():
    assert H30.sign(healthy_trace(steps=5)).level is Level.UNKNOWN


def test_groups_that_were_not_recorded_leave_a_note():
    rows = healthy_rows(steps=12, gain=0.0)
    for row in rows["steps"][1:]:
        del row["zero_std_share"]
        row["entropy"] = 1.0 if row["step"] < 5 else 0.01
    assert H30.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.NOTE


@pytest.mark.parametrize(("temperature", "there"), [(1.0, False), (0.5, True)])
def test_a_low_temperature_is_compared_with_1(temperature, there):
    assert (H30.experiment(RunConfig(temperature=temperature)) is not None) == there
