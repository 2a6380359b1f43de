"""`flatline.toml`: what a project says once, what a report says of it, and what it may not say."""

from types import SimpleNamespace

import pytest

import flatline
from flatline.diagnosis.chosen import chosen
from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.base import Level
from flatline.project import Project, project
from tests.traces import healthy_trace

WHOLE = """
correct = "exact_match"
gold = "answer"

[thresholds]
H03 = 3
entropy-collapse = 1.5

[off]
H44 = "the problems are sorted on purpose: a curriculum"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "down")
    return tmp_path


def wrong(folder, text, name="flatline.toml"):
    (folder / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        chosen(None)
    return str(error.value)


def test_without_a_file_all_are_asked(here):
    assert project() == Project()
    assert list(chosen(None).hypotheses) == list(HYPOTHESES)


def test_the_file_of_a_folder_above_is_found_and_every_value_knows_its_line(here):
    (here / "flatline.toml").write_text(WHOLE)
    said = project()
    assert said.correct == ("exact_match", "flatline.toml:2")
    assert said.gold == ("answer", "flatline.toml:3")
    assert said.thresholds == {
        "H03": (3, "flatline.toml:6"),
        "entropy-collapse": (1.5, "flatline.toml:7"),
    }
    assert said.off["H44"].place == "flatline.toml:10"


def test_pyproject_says_the_same_under_its_own_table(here):
    text = (
        '[project]\nname = "x"\n[tool.flatline]\ncorrect = "em"\n[tool.flatline.off]\nH44 = "why"\n'
    )
    (here / "pyproject.toml").write_text(text)
    assert project().correct == ("em", "pyproject.toml:4")
    assert project().off == {"H44": ("why", "pyproject.toml:6")}


def test_a_pyproject_that_does_not_speak_of_flatline_is_none_of_our_business(here):
    (here / "pyproject.toml").write_text("this is [not TOML")
    assert project() == Project()


def test_the_nearest_file_counts_and_none_outside_the_repository(here):
    (here / "flatline.toml").write_text('correct = "far"\n')
    (here / "deep" / "flatline.toml").write_text('correct = "near"\n')
    assert project().correct.value == "near"
    (here / "deep" / ".git").mkdir()
    (here / "deep" / "flatline.toml").unlink()
    assert project() == Project()


def test_what_is_switched_off_is_not_asked_and_every_report_says_why(here):
    (here / "flatline.toml").write_text(WHOLE)
    report = flatline.diagnose(healthy_trace(steps=3))
    assert "H44" not in {one.hypothesis for one in report.findings}
    told = "H44 data-order is switched off by flatline.toml:10: the problems are sorted on purpose"
    assert told in report.caveats[0]
    assert "H44 data-order is switched off by" in " ".join(str(report).split())
    assert "H44 data-order is switched off by" in report._repr_html_()
    assert any(told in caveat for caveat in report.to_json()["caveats"])


def test_who_names_the_hypotheses_gets_them_whatever_the_file_says(here):
    (here / "flatline.toml").write_text(WHOLE)
    report = flatline.diagnose(healthy_trace(steps=3), hypotheses=HYPOTHESES)
    assert "H44" in {one.hypothesis for one in report.findings}
    assert "switched off" not in " ".join(report.caveats)


@pytest.mark.parametrize(
    "level, severity, becomes",
    [
        (Level.SUSPECT, 2.9, Level.NOTE),
        (Level.SUSPECT, 3.0, Level.SUSPECT),
        (Level.SUSPECT, float("nan"), Level.SUSPECT),
        (Level.FAULT, 1.0, Level.FAULT),
    ],
)
def test_a_threshold_holds_back_suspects_and_never_a_fault(here, level, severity, becomes):
    (here / "flatline.toml").write_text(WHOLE)
    found = find("H03").found(level, "The KL is large.", severity=severity)
    judged = chosen(None).judged(found)
    assert judged.level is becomes
    if becomes is Level.NOTE:
        assert judged.text.endswith("2.9 times its threshold; flatline.toml:6 asks for 3.")
        assert not judged.fix and not judged.explains


def test_a_part_that_the_file_names_is_used_where_the_run_has_it(here):
    trace = healthy_trace(steps=3)
    (here / "flatline.toml").write_text('correct = "no_such_part"\n')
    assert flatline.diagnose(trace) == flatline.diagnose(trace, hypotheses=HYPOTHESES)


@pytest.mark.parametrize(
    "text, told",
    [
        ('threshold = 1\n', ["flatline.toml:1: nothing is called `threshold`", "`thresholds`?"]),
        ("\ncorrect = 3\n", ["flatline.toml:2: `correct` is a name", 'correct = "NAME"']),
        ("off = true\n", ["flatline.toml:1: `off` is a table", "`[off]`"]),
        ("[off]\nH44 = true\n", ["flatline.toml:2: H44 is switched off without a reason"]),
        ('[off]\nH44 = " "\n', ["flatline.toml:2", "without a reason"]),
        ('[off]\nH94 = "x"\n', ["flatline.toml:2: No hypothesis is called 'H94'"]),
        ("[thresholds]\nkl-divergance = 2\n", ["flatline.toml:2", "Did you mean H03 kl-div"]),
        ("[thresholds]\n\nH03 = 0.5\n", ["flatline.toml:3: H03 = 0.5 is no threshold"]),
        ("[thresholds]\nH03 = true\n", ["flatline.toml:2: H03 = True is no threshold"]),
        ("[thresholds]\nH03 = nan\n", ["flatline.toml:2"]),
        ("[thresholds.H03]\nx = 1\n", ["flatline.toml:1", "is no threshold"]),
        ("correct = \n", ["flatline.toml is not valid TOML", "line 1"]),
    ],
)  # fmt: skip
def test_what_it_may_not_say_is_one_message_with_the_line_and_what_to_write(here, text, told):
    said = wrong(here, text)
    assert [part for part in told if part not in said] == []


def test_the_table_to_write_in_pyproject_is_named_in_full(here):
    said = wrong(here, "[tool.flatline]\noff = 1\n", name="pyproject.toml")
    assert "pyproject.toml:2" in said and "`[tool.flatline.off]`" in said


def test_a_trainer_is_told_the_names_where_it_has_them_and_an_argument_comes_first(here):
    from flatline.live.trl.settings import truth

    (here / "flatline.toml").write_text(WHOLE)
    data = SimpleNamespace(column_names=["prompt", "answer"])
    known = SimpleNamespace(reward_func_names=["exact_match", "format"], train_dataset=data)
    other = SimpleNamespace(reward_func_names=["length"], train_dataset=None)
    assert truth(known, None, None) == {"correct": "exact_match", "gold": "answer"}
    assert truth(known, "format", None)["correct"] == "format"
    assert truth(other, None, None) == {"correct": None, "gold": None}
