"""The plan has every fault and enough healthy runs, and is worth most when it is broken off."""

from dataclasses import replace

import pytest

from bench.plan import SEEDS, Kind, chosen, full_plan, quick_plan, spread
from bench.planting import MILDER, PAIRS
from bench.setups import twin_of
from flatline.errors import ConfigError
from flatline.faults import FAULTS, find


@pytest.fixture(scope="module")
def plan():
    return full_plan()


def test_every_fault_is_planted_on_every_seed(plan):
    planted = {(cell.fault, cell.seed) for cell in plan if cell.task == "musique"}
    assert {(fault.name, seed) for fault in FAULTS for seed in SEEDS} <= planted


def test_no_two_cells_share_a_folder_or_a_run(plan):
    assert len({cell.name for cell in plan}) == len(plan)
    assert len({repr(sorted(cell.changes.items())) for cell in plan}) == len(plan)


def test_every_cell_is_a_run_that_can_be_configured(plan, tmp_path):
    for cell in plan:
        assert cell.config(tmp_path).max_steps == cell.steps


def test_every_faulty_cell_has_a_healthy_one_to_be_compared_with(plan):
    names = [cell.name for cell in plan]
    for i, cell in enumerate(plan):
        if cell.fault:
            assert names.index(cell.reference) < i


def test_at_least_sixty_healthy_setups_are_held_out(plan):
    assert sum(cell.kind is Kind.HELD_OUT for cell in plan) >= 60


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


def test_a_setup_is_calibrations_own_whether_it_names_the_usual_rate_or_not():
    assert twin_of({"task": "musique", "learning_rate": 3e-3, "seed": 100}) == "lora"
    assert twin_of({"learning_rate": 2e-3, "seed": 10}) is None


def test_a_benchmark_broken_off_has_seed_0_of_all_before_seed_1_of_any(plan):
    usual = [cell for cell in plan if cell.fault in {fault.name for fault in FAULTS}]
    seeds = [cell.seed for cell in usual if cell.task == "musique"]
    assert seeds == sorted(seeds)


def test_healthy_runs_are_spread_among_the_faulty_ones(plan):
    half = plan[: len(FAULTS)]
    assert sum(cell.kind is Kind.HELD_OUT for cell in half) >= 10


def test_a_second_strength_is_another_one(plan):
    for name, strength in MILDER.items():
        assert find(f"{name}:{strength:g}")[0].strength != find(name)[0].strength


def test_the_faults_of_a_pair_belong_to_different_hypotheses():
    for pair in PAIRS:
        assert len({fault.hypothesis for fault, _ in find(pair)}) == 2


def test_the_quick_plan_is_small():
    cells = quick_plan()
    assert {Kind.REFERENCE, Kind.FAULT, Kind.HELD_OUT} == {cell.kind for cell in cells}
    assert sum(cell.steps for cell in cells) <= 120


def test_cells_are_chosen_by_pattern(plan):
    assert {cell.fault for cell in chosen(plan, "kl-sign-s?, healthy-s0")} == {None, "kl-sign"}
    with pytest.raises(ConfigError, match="fits none"):
        chosen(plan, "nonsense")


def test_spreading_keeps_both_orders():
    assert spread([1, 2, 3, 4], [10, 20]) == [1, 10, 2, 3, 20, 4]
