"""Releases with known defects: the table, `flatline doctor`, and the line of checkup and attach."""

import pytest
from typer.testing import CliRunner

from flatline import releases
from flatline.cli import app
from flatline.releases import DEFECTS, defects_of, note_on


def test_a_release_between_the_first_with_a_defect_and_the_mended_one_has_it():
    assert "trl_scale_rewards" in defects_of("trl", "0.22.1")
    assert "trl_scale_rewards" not in defects_of("trl", "0.21.0")
    assert "trl_scale_rewards" not in defects_of("trl", "0.22.2")


@pytest.mark.parametrize("release", ["0.6.1.post1", "0.6.1"])
def test_a_post_release_is_older_than_the_next_release(release):
    assert "openrlhf_temperature" in defects_of("openrlhf", release)


@pytest.mark.parametrize("release", ["", "unknown", "99"])
def test_a_version_that_cannot_be_read_or_is_new_has_no_known_defect(release):
    assert defects_of("trl", release) == {}


def test_two_digit_numbers_are_compared_as_numbers():
    assert "trl_one_end_of_sequence" in defects_of("trl", "1.9.0")
    assert "trl_one_end_of_sequence" not in defects_of("trl", "1.16.0")


@pytest.mark.parametrize("name", sorted(DEFECTS))
def test_the_release_that_mends_a_defect_does_not_have_it(name):
    one = DEFECTS[name]
    assert name in defects_of(one.library, one.since)
    assert name not in defects_of(one.library, one.mended)


def test_doctor_names_the_defect_its_exhibit_and_the_release_that_mends_it(monkeypatch):
    monkeypatch.setattr(releases, "installed", {"trl": "0.22.1"}.get)
    said = CliRunner().invoke(app, ["doctor"])
    assert said.exit_code == 0
    assert "trl_scale_rewards" in said.output and "pip install 'trl>=0.22.2'" in said.output


def test_doctor_says_that_a_release_without_a_known_defect_has_none(monkeypatch):
    monkeypatch.setattr(releases, "installed", {"trl": "1.16.0"}.get)
    assert CliRunner().invoke(app, ["doctor"]).output == "trl 1.16.0: no known defect.\n"


def test_doctor_says_that_nothing_is_installed_and_does_not_call_that_healthy(monkeypatch):
    monkeypatch.setattr(releases, "installed", {}.get)
    assert "nothing to say" in CliRunner().invoke(app, ["doctor"]).output


def test_one_line_is_said_of_a_trainer_of_a_release_with_defects(monkeypatch):
    monkeypatch.setattr(releases, "installed", {"trl": "0.22.1"}.get)
    kind = type("GRPOTrainer", (), {"__module__": "trl.trainer.grpo_trainer"})
    own = type("Mine", (kind,), {"__module__": "train"})
    assert "trl 0.22.1 has" in str(note_on(own())) and "flatline doctor" in str(note_on(own()))


def test_a_known_defect_of_transformers_does_not_hide_those_of_the_trainer(monkeypatch):
    monkeypatch.setattr(releases, "installed", {"trl": "0.22.1", "transformers": "4.51.3"}.get)
    base = type("Trainer", (), {"__module__": "transformers.trainer"})
    kind = type("GRPOTrainer", (base,), {"__module__": "trl.trainer.grpo_trainer"})
    said = str(note_on(kind()))
    assert "trl 0.22.1 has" in said and "transformers 4.51.3 has 2 known defects" in said


def test_nothing_is_said_of_a_library_that_the_trainer_is_not_from(monkeypatch):
    monkeypatch.setattr(releases, "installed", {"trl": "0.22.1"}.get)
    assert note_on(object()) is None
