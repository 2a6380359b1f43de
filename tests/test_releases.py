"""Releases with known defects: the table, `flatline doctor`, and the line of checkup and attach."""

import pytest
from typer.testing import CliRunner

from flatline import releases
from flatline.cli import app
from flatline.releases import DEFECTS, defects_of, note_on


@pytest.mark.parametrize(
    ("library", "release", "name", "has_it"),
    [
        ("trl", "0.22.1", "trl_scale_rewards", True),
        ("trl", "0.21.0", "trl_scale_rewards", False),
        ("trl", "0.22.2", "trl_scale_rewards", False),
        ("openrlhf", "0.6.1.post1", "openrlhf_temperature", True),
        ("openrlhf", "0.6.1", "openrlhf_temperature", True),
        ("trl", "1.9.0", "trl_one_end_of_sequence", True),
        ("trl", "1.16.0", "trl_one_end_of_sequence", False),
    ],
)
def test_a_release_between_the_first_with_a_defect_and_the_mended_one_has_it(
    library, release, name, has_it
):
    assert (name in defects_of(library, release)) is has_it


@pytest.mark.parametrize("release", ["", "unknown", "99"])
def test_a_version_that_cannot_be_read_or_is_new_has_no_known_defect(release):
    assert defects_of("trl", release) == {}


@pytest.mark.parametrize("name", sorted(DEFECTS))
def test_the_release_that_mends_a_defect_does_not_have_it(name):
    one = DEFECTS[name]
    assert name in defects_of(one.library, one.since)
    assert name not in defects_of(one.library, one.mended)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"trl": "0.22.1"}, "pip install 'trl>=0.22.2'"),
        ({"trl": "1.16.0"}, "trl 1.16.0: no known defect."),
        ({}, "nothing to say"),
    ],
)
def test_doctor_names_what_mends_a_defect_and_calls_nothing_healthy_unseen(
    monkeypatch, found, said
):
    monkeypatch.setattr(releases, "installed", found.get)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0 and said in result.output


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
