"""What somebody types into Python or a notebook works as they would guess."""

import json

import pytest
from typer.testing import CliRunner

import flatline
from flatline.cli import app
from flatline.errors import ConfigError, TraceError

LOG = [{"step": step, "reward": 0.5, "loss": 0.1, "kl": 1e-4 * step} for step in range(1, 60)]


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps({"log_history": LOG}))
    return file


def test_a_path_is_diagnosed_as_text_or_as_a_path(log):
    one, other = flatline.diagnose(str(log)), flatline.diagnose(log)
    assert one == other and one.subject == str(log) and one.tested


def test_what_is_no_log_is_one_clear_error(tmp_path):
    with pytest.raises(TraceError, match="no file or folder"):
        flatline.diagnose(str(tmp_path / "trainer_state.json"))


def test_a_trainer_that_is_given_by_mistake_is_told_where_to_go():
    with pytest.raises(ConfigError, match=r"flatline\.checkup\(trainer\)"):
        flatline.diagnose(object())


def test_a_printed_report_is_what_the_console_shows(log, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = CliRunner().invoke(app, ["diagnose", str(log)]).stdout
    assert str(flatline.diagnose(str(log))).rstrip() == shown.rstrip()


def test_its_repr_is_one_line_that_says_what_it_comes_to(log):
    shown = repr(flatline.diagnose(str(log)))
    assert "\n" not in shown and "trainer_state.json: unexplained" in shown
