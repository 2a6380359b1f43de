"""Weights that two processes share, with FSDP2 and with DeepSpeed ZeRO-3, on this machine's CPU."""

import importlib.util

import pytest

import flatline
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import ALARMS
from tests.launched import launched
from tests.quality.report import report

no_deepspeed = importlib.util.find_spec("deepspeed") is None
KINDS = [
    "fsdp2",
    pytest.param("zero3", marks=pytest.mark.skipif(no_deepspeed, reason="deepspeed is not here")),
]
ANSWERED = {"fsdp2": 38, "zero3": 25}
"""Hypotheses that are ruled out or found; DeepSpeed hides its gradients."""


@pytest.fixture(scope="module", params=KINDS)
def said(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    faults = () if request.param == "zero3" else ("fault,loss_times_processes,gathered_backwards",)
    found = launched(folder, request.param, "train", "look", *faults)
    return {**found, "folder": folder, "kind": request.param}


def test_a_checkup_changes_no_bit_of_what_shards_become(said):
    for process in (0, 1):
        assert said["train", process]["weights"] == said["trained", process]["weights"]


def test_both_processes_get_the_same_report_and_no_alarm(said):
    first, second = (said["look", process]["levels"] for process in (0, 1))
    assert first == second
    assert not {code: told for code, told in first.items() if told[0] in ALARMS}
    answered = sum(level == "ok" for level, _ in first.values())
    report(f"{said['kind']}: {answered} of {len(first)} hypotheses answered on two processes")
    assert answered >= ANSWERED[said["kind"]]


def test_what_is_recorded_under_shards_is_diagnosed_without_an_alarm(said):
    trace = flatline.Trace.open(said["folder"] / "run")
    assert set(trace.rollouts["rank"].tolist()) == {0, 1}
    assert not diagnose(trace).alarms


def test_faults_between_processes_are_seen_on_shards(said):
    if said["kind"] == "zero3":
        pytest.skip("its gradients are hidden")
    for name in ("loss_times_processes", "gathered_backwards"):
        assert said[name, 0]["level"] == "fault"
