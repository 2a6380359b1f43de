from tests.hypotheses.edited import levels_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h00_positive_control import RUNGS, Climb, PositiveControl
from flatline.stats import Estimate
from flatline.tasks import TASKS

FORMAT, PROMPT, TOOL, TASK = RUNGS["musique"]
UP, FLAT, WIDE = (
    Estimate(0.2, 0.1, 0.3, 64),
    Estimate(0.0, -0.03, 0.03, 64),
    Estimate(0.05, -0.1, 0.2, 64),
)


def climb(rung, gain, before=0.6):
    return Climb(rung=rung, before=before, gain=gain)


def test_a_part_at_its_maximum_has_no_room_to_rise():
    flat_at_the_top = climb(FORMAT, FLAT, before=0.99)
    assert flat_at_the_top.outcome == "no room"
    assert PositiveControl().judge([flat_at_the_top, climb(PROMPT, UP)]).level is Level.OK


def test_every_task_has_a_ladder_that_begins_without_context():
    assert set(RUNGS) == {task.name for task in TASKS}
    assert all(rungs[0].part == "format" and len(rungs) >= 2 for rungs in RUNGS.values())


test_levels = levels_of(None, {
    "the first rung that fails names the subsystem": ("suspect",
        lambda: PositiveControl().judge([climb(FORMAT, UP), climb(PROMPT, FLAT)])),
    "all rungs climbed clears the stack": ("ok",
        lambda: PositiveControl().judge([climb(rung, UP) for rung in RUNGS["musique"]])),
    "a rung that may have moved is not called failed": ("unknown",
        lambda: PositiveControl().judge([climb(FORMAT, UP), climb(PROMPT, WIDE)])),
})  # fmt: skip
