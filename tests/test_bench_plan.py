"""The plan has every fault and enough healthy runs, and is worth most when it is broken off."""

from dataclasses import replace

import pytest

from bench.plan import SEEDS, Kind, full_plan
from flatline.faults import FAULTS


@pytest.fixture(scope="module")
def plan():
    return full_plan()


def test_every_fault_is_planted_on_every_seed(plan):
    planted = {(cell.fault, cell.seed) for cell in plan if cell.task == "musique"}
    assert {(fault.name, seed) for fault in FAULTS for seed in SEEDS} <= planted


def test_every_cell_is_a_run_that_can_be_configured(plan, tmp_path):
    for cell in plan:
        assert cell.config(tmp_path).max_steps == cell.steps


def test_every_faulty_cell_has_a_healthy_one_to_be_compared_with(plan):
    names = [cell.name for cell in plan]
    for i, cell in enumerate(plan):
        if cell.fault:
            assert names.index(cell.reference) < i


def test_no_held_out_setup_is_one_that_thresholds_were_set_on(plan, tmp_path):
    def but_for_the_seed(cell):
        run = cell.config(tmp_path)
        return replace(run, seed=0, learning_rate=run.rate)

    seen = [cell for cell in plan if cell.kind in (Kind.CALIBRATION, Kind.REFERENCE)]
    held = [cell for cell in plan if cell.kind is Kind.HELD_OUT]
    again = [
        (one.name, other.name)
        for one in held
        for other in seen
        if but_for_the_seed(one) == but_for_the_seed(other)
    ]
    assert not again
    assert not {cell.seed for cell in seen} & {cell.seed for cell in held}
