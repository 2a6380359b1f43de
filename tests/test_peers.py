"""The comparison with other tools gives them what they can take, and believes them nothing."""

import json
import sys

import pytest

from bench import peers
from bench.peers import Opinion, ask, call, judged
from bench.peers_asked import FILE, ask_all, compared, pythons_of
from flatline.errors import ConfigError
from tests.bench_outcomes import outcome
from tests.traces import healthy_trace


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
