"""The comparison with other tools gives them what they can take, and believes them nothing."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flatline.hypotheses import HYPOTHESES
from flatline.trace import Trace
from tests.traces import healthy_trace, rollout_rows, run_facts

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import peers  # noqa: E402
import peers_ask  # noqa: E402
from peers_ask import Opinion, ask, call, judged, log_lines, recording_lines  # noqa: E402


def logged_trace(**metrics):
    """One step with metrics, after a step 0 that holds a held-out reward alone."""
    steps = [{"step": 0, "heldout_reward": 0.25}, {"step": 1, "metrics": metrics}]
    rollouts = rollout_rows([[0.0, 1.0], [1.0, 1.0]], completion="text", parts={"format": 1.0})
    return Trace.from_rows(run=run_facts(beta=0.5), steps=steps, rollouts=rollouts)


def row(*, fault=None, causes=(), counts=True, name="run", **said):
    return peers.Row(name=name, fault=fault, causes=frozenset(causes), counts=counts, said=said)


def test_a_log_has_settings_then_steps_under_the_names_of_trl():
    settings, before, first = log_lines(logged_trace(reward=0.5, **{"rewards/format/mean": 1.0}))
    assert (settings["config"]["algorithm"], settings["config"]["beta"]) == ("grpo", 0.5)
    assert before == {"step": 0, "eval_reward": 0.25}
    assert first == {"step": 1, "reward": 0.5, "rewards/format/mean": 1.0}


def test_metrics_that_only_flatline_logs_are_kept_from_peers():
    *_, first = log_lines(logged_trace(**{"reward_std": 1.0, "debug/reward_std": 2.0}))
    assert first == {"step": 1, "reward_std": 1.0}


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
        ("plateau", "INFO", ""),
        ("kl_drift", "WARNING", ""),
        ("entropy_collapse", "CRITICAL", ""),
        ("reward_hacking", "SKIPPED", "only 2 evaluations"),
    ]
    said = judged(findings)
    assert said.alarms == ("entropy_collapse", "kl_drift")
    assert "H03" in said.means and "H44" not in said.means
    assert said.skipped == ("reward_hacking: only 2 evaluations",)


def test_a_finding_nobody_knows_is_an_alarm_that_counts_for_nothing():
    said = judged([("SOMETHING_NEW", "critical", "")])
    assert said.alarms and not said.means


def test_what_a_peer_says_cannot_steer_a_terminal_or_break_a_table():
    said = judged([("evil\x1b[2J | cell\nline", "warn", "")])
    assert str(said) == "evil\\x1b[2J \\| cell line"


def test_a_peer_that_is_not_installed_has_failed_and_is_not_silent(tmp_path):
    said = ask("rldoctor", sys.executable, healthy_trace(steps=2), tmp_path)
    assert "rl_doctor" in said.failure and str(said).startswith("FAILED")


@pytest.mark.parametrize("answer", ["not json", "[]", '{"findings": [{}]}', '{"findings": 3}'])
def test_an_answer_of_another_shape_is_a_failure(answer, tmp_path, monkeypatch):
    monkeypatch.setattr(peers_ask, "call", lambda *_, **__: answer)
    assert ask("rldoctor", "python", healthy_trace(steps=2), tmp_path).failure


def test_a_peer_that_hangs_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(peers_ask, "SECONDS", 0.2)
    hanging = "import time; time.sleep(30)"
    monkeypatch.setitem(peers_ask.ASK, "rldoctor", lambda python, *_: call(python, ["-c", hanging]))
    assert "Timeout" in ask("rldoctor", sys.executable, healthy_trace(steps=2), tmp_path).failure


def test_an_endless_answer_is_refused(monkeypatch):
    monkeypatch.setattr(peers_ask, "MOST_BYTES", 100)
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
    assert set().union(*peers_ask.MEANS.values()) <= known


def test_the_page_names_every_finding_and_what_it_counts_for():
    page = (ROOT / "docs" / "peers.md").read_text()
    for name, codes in (peers_ask.RLPROBE | peers_ask.RLDOCTOR).items():
        assert f"| {name} | {codes or 'nothing'} |" in page


def test_only_the_first_cause_of_flatline_counts(monkeypatch):
    report = SimpleNamespace(causes=[SimpleNamespace(hypothesis=code) for code in ("H24", "H03")])
    monkeypatch.setattr(peers, "diagnose", lambda trace: report)
    assert peers.ours(healthy_trace(steps=2)).means == {"H24"}


def test_healthy_runs_that_did_not_learn_are_left_out_of_the_totals(capsys):
    quiet, loud = Opinion(), Opinion(alarms=("plateau",), means=frozenset({"H24"}))
    rows = [
        row(name="a", tool=quiet),
        row(name="b", tool=quiet),
        row(name="c", tool=loud, counts=False),
        row(name="d", tool=loud, fault="learning-rate-low", causes=["H24"]),
        row(name="e", tool=quiet, fault="kl-sign", causes=["H03"], counts=False),
    ]
    peers.print_totals(rows, ["tool"])
    printed = capsys.readouterr().out
    assert "| healthy runs: alarm | 0 of 2 (" in printed
    assert "| faulty runs: points at the cause | 1 of 2 (" in printed
    assert "| faults that cost reward: alarm | 1 of 1 |" in printed


def test_runs_are_found_as_themselves_and_below_a_folder(tmp_path):
    for name in ("a", "b", "no-run"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        (tmp_path / name / "run.json").write_text("{}")
    assert [run.name for run in peers.folders([tmp_path])] == ["a", "b"]
    assert peers.folders([tmp_path / "b"]) == [tmp_path / "b"]
