"""The museum: each exhibit is whole, wheels are handled as said, the page is up to date."""

import json
import zipfile
from pathlib import Path

import pytest
from museum import page, run, verifiers_seeds, wheels
from museum.exhibit import Exhibit, defect, exhibit, mechanism, module, names

from flatline.hypotheses import HYPOTHESES
from flatline.releases import DEFECTS, defects_of

NAMES = names()
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", NAMES)
def test_an_exhibit_shows_a_known_defect_with_a_release_that_has_it_and_one_that_has_not(name):
    one, what = exhibit(name), defect(name)
    assert name in defects_of(what.library, one.bad)
    assert name not in defects_of(what.library, one.good)


@pytest.mark.parametrize("name", NAMES)
def test_an_exhibit_says_what_happens_and_expects_hypotheses_that_exist(name):
    assert mechanism(name).count(".") >= 2
    assert callable(module(name).run)
    assert exhibit(name).expects and set(exhibit(name).expects) <= {one.id for one in HYPOTHESES}


def test_every_known_defect_is_an_exhibit():
    assert set(DEFECTS) == set(NAMES)


ONE = Exhibit(bad="1", good="2", lines="x.py:1", expects=("H53",))
ALARM = {"code": "H53", "name": "advantages-depart", "level": "fault"}


def test_a_bad_release_is_named_where_the_first_alarm_is_expected():
    assert run.named(ONE, {"alarms": [ALARM]})
    assert not run.named(ONE, {"alarms": [{**ALARM, "code": "H01"}, ALARM]})
    assert not run.named(ONE, {"alarms": []}) and not run.named(ONE, {"failure": "ImportError"})


def test_a_good_release_that_stopped_or_could_not_be_had_is_not_called_silent():
    assert run.silent({"alarms": []})
    for side in ({"alarms": [ALARM]}, {"failure": "ImportError"}, {"not_had": "trl==9: none"}):
        assert not run.silent(side)


def test_a_museum_that_was_stopped_goes_on_with_what_is_missing_and_begins_that_anew(
    tmp_path, monkeypatch
):
    played = []

    def plays(module, paths, folder):
        played.append(folder.name)
        assert not (folder / "run").exists(), "nothing of the try that was stopped"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / run.RESULT).write_text('{"alarms": []}')

    monkeypatch.setattr(run, "unpacked", lambda wheel, store: store / wheel)
    monkeypatch.setattr(run, "in_process", plays)
    (tmp_path / "trl_scale_rewards" / "0.22.1" / "run").mkdir(parents=True)
    for _ in range(2):
        found = run.run_exhibit("trl_scale_rewards", tmp_path)
        assert found["bad"]["alarms"] == found["good"]["alarms"] == []
    assert played == ["0.22.1", "0.22.2"], "what is finished is not run again"


def test_a_wheel_is_fetched_once_and_unpacked_with_what_it_keeps_beside_its_packages(
    tmp_path, monkeypatch
):
    asked = []

    def fetch(requirement, folder):
        asked.append(requirement)
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / "Some_Lib-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("some_lib-1.0.data/purelib/some_lib/__init__.py", "")

    monkeypatch.setattr(wheels, "_download", fetch)
    first = wheels.unpacked("some-lib==1.0", tmp_path)
    assert (first / "some_lib" / "__init__.py").is_file()
    assert wheels.unpacked("some-lib==1.0", tmp_path) == first and asked == ["some-lib==1.0"]


def test_text_of_a_release_cannot_break_the_table():
    assert page.said({"failure": "a | b\n<script>"}) == "no answer: a \\| b &lt;script>"


def test_the_page_of_verifiers_shows_the_kept_seeds():
    kept = json.loads(verifiers_seeds.KEPT.read_text(encoding="utf-8"))
    assert len(kept["runs"]) == 12
    shown = (ROOT / "docs/real-model.md").read_text(encoding="utf-8")
    assert verifiers_seeds.page(kept) in shown
