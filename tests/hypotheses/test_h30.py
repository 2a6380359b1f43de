"""H30: the entropy falls and groups die with it."""

from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

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


def test_groups_that_were_not_recorded_leave_a_note():
    rows = healthy_rows(steps=12, gain=0.0)
    for row in rows["steps"][1:]:
        del row["zero_std_share"]
        row["entropy"] = 1.0 if row["step"] < 5 else 0.01
    assert H30.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.NOTE


test_levels_of_the_sign = levels_of(H30.sign, {
    "an entropy that falls with the groups": ("suspect", lambda: collapsing(0.05)),
    "a fall alone is noted": ("note", lambda: collapsing(0.05, dead=0.1)),
    "a fall alone is noted (2)": ("note", lambda: collapsing(0.05, gain=0.5)),
    "an entropy that stays is fine": ("ok", lambda: collapsing(0.5)),
})  # fmt: skip
