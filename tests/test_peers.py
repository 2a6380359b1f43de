"""The comparison with other tools gives them what they can take, and believes them nothing."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import peers
from bench.logs import log_alone, log_lines, recording_lines
from bench.peers import Opinion, ask, call, judged
from bench.peers_asked import FILE, ask_all, compared, pythons_of
from bench.results import SILENT
from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES
from flatline.trace import Trace
from tests.bench_outcomes import outcome
from tests.traces import healthy_trace, rollout_rows, run_facts

ROOT = Path(__file__).parents[1]


def logged_trace(**metrics):
    """One step with metrics, after a step 0 that holds a held-out reward alone."""
    steps = [{"step": 0, "heldout_reward": 0.25}, {"step": 1, "metrics": metrics}]
    rollouts = rollout_rows([[0.0, 1.0], [1.0, 1.0]], completion="text", parts={"format": 1.0})
    return Trace.from_rows(run=run_facts(beta=0.5), steps=steps, rollouts=rollouts)


def test_a_log_has_settings_then_steps_under_the_names_of_trl():
    settings, before, first = log_lines(logged_trace(reward=0.5, **{"rewards/format/mean": 1.0}))
    assert (settings["config"]["algorithm"], settings["config"]["beta"]) == ("grpo", 0.5)
    assert before == {"step": 0, "eval_reward": 0.25}
    assert first == {"step": 1, "reward": 0.5, "rewards/format/mean": 1.0}


def test_metrics_that_only_flatline_logs_are_kept_from_peers():
    *_, first = log_lines(logged_trace(**{"reward_std": 1.0, "debug/reward_std": 2.0}))
    assert first == {"step": 1, "reward_std": 1.0}


def test_a_log_alone_has_no_rollouts():
    alone = log_alone(logged_trace(reward=0.5))
    assert alone.steps["reward"][-1] == 0.5
    assert len(alone.rollouts.table) == 0


def test_a_recording_has_every_sample_of_a_step_with_its_group():
    _, line = recording_lines(logged_trace(grad_norm=1.0))
    assert [sample["group_id"] for sample in line["samples"]] == ["1_g0", "1_g0", "1_g1", "1_g1"]
    assert line["samples"][1]["reward_total"] == 1.0
    assert line["samples"][0]["reward_components"] == {"format": 1.0}
    assert line["more"]["adv_std"] > 0


@pytest.mark.parametrize(("norm", "count"), [(1.0, 0), (math.nan, 1), (math.inf, 1)])
def test_a_gradient_that_is_no_number_is_counted_for_rlprobe(norm, count):
    _, line = recording_lines(logged_trace(grad_norm=norm))
    assert line["more"]["nan_count"] == count


def test_warnings_are_alarms_and_notes_are_not():
    findings = [
        ("plateau", "INFO"),
        ("kl_drift", "WARNING"),
        ("entropy_collapse", "CRITICAL"),
        ("reward_hacking", "SKIPPED"),
    ]
    said = judged(findings)
    assert said.alarms == ("entropy_collapse", "kl_drift")
    assert "H03" in said.means and "H44" not in said.means


def test_a_finding_nobody_knows_is_an_alarm_that_counts_for_nothing():
    said = judged([("SOMETHING_NEW", "critical")])
    assert said.alarms and not said.means


def test_what_a_peer_says_cannot_steer_a_terminal_or_break_a_table():
    said = judged([("evil\x1b[2J | cell\nline", "warn")])
    assert str(said) == "evil\\x1b[2J \\| cell line"


def test_a_peer_that_fails_is_not_silent():
    said = ask("rldoctor", sys.executable, healthy_trace(steps=2))
    assert "rl_doctor" in said.failure and str(said).startswith("FAILED")


@pytest.mark.parametrize("answer", ["not json", "[]", '{"findings": [{}]}', '{"findings": 3}'])
def test_an_answer_of_another_shape_is_a_failure(answer, monkeypatch):
    monkeypatch.setattr(peers, "call", lambda *_, **__: answer)
    assert ask("rldoctor", "python", healthy_trace(steps=2)).failure


def test_a_peer_that_hangs_is_a_failure(monkeypatch):
    monkeypatch.setattr(peers, "SECONDS", 0.2)
    hanging = "import time; time.sleep(30)"
    monkeypatch.setitem(peers.ASK, "rldoctor", lambda python, *_: call(python, ["-c", hanging]))
    assert "Timeout" in ask("rldoctor", sys.executable, healthy_trace(steps=2)).failure


def test_an_endless_answer_is_refused(monkeypatch):
    monkeypatch.setattr(peers, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        call(sys.executable, ["-c", "print('x' * 101)"])


def test_a_peer_does_not_see_our_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    seen = json.loads(
        call(sys.executable, ["-c", "import json, os; print(json.dumps([*os.environ]))"])
    )
    assert "WANDB_API_KEY" not in seen


def test_findings_count_only_for_hypotheses_that_exist():
    known = {hypothesis.id for hypothesis in HYPOTHESES}
    assert set().union(*peers.MEANS.values()) <= known


def test_a_peer_that_is_not_installed_is_refused_with_what_to_type(tmp_path):
    asked = [outcome("kl-sign", folder=tmp_path)]
    with pytest.raises(ConfigError, match="pip install rldoctor"):
        ask_all(asked, pythons_of([f"rldoctor={sys.executable}"]), print)


@pytest.mark.parametrize("text", ["rlprobe", "other=python"])
def test_a_peer_that_cannot_be_asked_is_refused(text):
    with pytest.raises(ConfigError, match="NAME=PYTHON"):
        pythons_of([text])


def keep(one, **said):
    """The answers of peers, as they lie beside a cell."""
    one.folder.mkdir(parents=True)
    kept = {name: opinion.to_json() for name, opinion in said.items()}
    (one.folder / FILE).write_text(json.dumps(kept))
    return one


def test_of_flatline_only_the_first_alarm_counts_and_of_a_peer_every_one(tmp_path):
    healthy = outcome(None, folder=tmp_path / "healthy")
    two = {"diagnose": ["H24", "H03"], "after": 0.1}
    runs = [
        keep(healthy, rldoctor=Opinion()),
        keep(
            outcome("kl-sign", folder=tmp_path / "a", **two),
            rldoctor=judged([("plateau", "warning"), ("kl_drift", "warning")]),
        ),
    ]
    tools = compared(runs)["tools"]
    assert tools["flatline"]["noticed"]["count"] == 1
    assert tools["flatline"]["cause"]["count"] == 0
    assert tools["rldoctor"]["cause"]["count"] == 1


def test_a_peer_nobody_asked_has_no_column(tmp_path):
    found = compared([outcome(None, folder=tmp_path / "a")])
    assert found["asked"] == {"rlprobe": 0, "rldoctor": 0}
    assert found["tools"] == {}


def test_a_look_of_our_own_that_broke_down_gave_no_answer(tmp_path):
    whole = outcome(None, folder=tmp_path / "whole")
    broken = replace(outcome(None, seed=1, folder=tmp_path / "broken"), diagnoses={40: SILENT})
    tools = compared([keep(one, rldoctor=Opinion()) for one in (whole, broken)])["tools"]
    assert tools["flatline"]["failed"] == 1
    assert tools["rldoctor"]["failed"] == 0
