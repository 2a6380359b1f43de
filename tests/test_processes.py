"""Two processes that train one model: they are looked at together, and nobody waits for nobody."""

import pytest

import flatline
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import ALARMS
from tests.launched import launched
from tests.ranks_child import FAULTS

FAULTY = {
    "same_prompts": "draw the same 3 prompts",
    "groups_dealt_out": "are not one prompt",
    "gathered_backwards": "do not arrive at the rows",
    "loss_times_processes": "multiplied by the number of processes",
    "weights_apart": "not the same in all 2 processes",
    "gradients_not_averaged": "not the mean over the processes",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    asked = ("train", "look", f"fault,{','.join(FAULTS)}", "fail", "soon")
    return {**launched(folder, "ddp", *asked), "folder": folder}


def test_a_checkup_before_training_changes_no_bit_of_what_two_processes_train(said):
    ends = {said[what, process]["weights"] for what in ("train", "trained") for process in (0, 1)}
    assert len(ends) == 1


def test_both_processes_get_the_same_report_and_no_alarm(said):
    first, second = (said["look", process]["levels"] for process in (0, 1))
    assert first == second
    assert not {code: told for code, told in first.items() if told[0] in ALARMS}
    assert first["H60"][0] == "ok" and "hold the gradient of a single process" in first["H60"][1]
    assert len([1 for level, _ in first.values() if level == "ok"]) >= 38


def test_what_two_processes_record_is_diagnosed_without_an_alarm(said):
    trace = flatline.Trace.open(said["folder"] / "run")
    assert set(trace.rollouts["rank"].tolist()) == {0, 1}
    assert not diagnose(trace).alarms


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_between_processes_is_seen_by_each_of_them(said, name):
    for process in (0, 1):
        assert said[name, process]["level"] == "fault"
        assert FAULTY[name] in said[name, process]["text"]


def test_a_reward_that_fails_in_one_process_is_told_by_both_and_nobody_waits(said):
    for process in (0, 1):
        level, text = said["fail", process]["levels"]["H60"]
        assert level == "unknown" and "no judge here" in text


def test_processes_stop_together_where_the_time_of_one_is_up(said):
    first, second = (said["soon", process]["unknown"] for process in (0, 1))
    assert first == second and len(first) > 20
