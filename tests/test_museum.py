"""The museum: each exhibit is whole, wheels are handled as said, the page is up to date."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from museum import __main__ as command
from museum import fetch, page, play, run, verifiers_seeds, wheels
from museum.exhibit import Exhibit, defect, exhibit, mechanism, module, names
from museum.peers import ask_peers

import flatline
from flatline.errors import ConfigError
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


FORETOLD = [name for name in NAMES if exhibit(name).later >= 2]


def test_at_least_five_exhibits_were_written_after_the_last_change():
    assert sum(exhibit(name).later == 3 for name in NAMES) >= 5


@pytest.mark.parametrize("name", FORETOLD)
def test_an_exhibit_written_before_it_was_run_shows_its_defect_without_flatline_and_is_listed(name):
    assert callable(module(name).symptom)
    one, what = exhibit(name), defect(name)
    row = f"| {name} | {what.library} {one.bad}, {one.good} | {' '.join(one.expects)} |"
    assert row in (ROOT / "museum/README.md").read_text(encoding="utf-8")


def test_what_is_fetched_for_an_exhibit_is_both_releases_and_what_they_were_made_for():
    wheels = fetch.needed("trl_scale_rewards")
    assert {"trl==0.22.1", "trl==0.22.2", "transformers==4.56.2"} <= wheels


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


def test_a_checkup_that_is_refused_in_words_leaves_the_recorded_run_to_tell(monkeypatch, tmp_path):
    def refuse(_):
        raise ConfigError("Rows are left out.\nRecord it.")

    monkeypatch.setattr(flatline, "checkup", refuse)
    monkeypatch.setattr(play, "recorded", lambda *_: {"diagnose": "a report"})
    assert play.looked(None, tmp_path) == {"diagnose": "a report"}
    told = page._refused({"refused": (tmp_path / play.REFUSED).read_text()})
    assert told.endswith("the checkup says: Rows are left out.") and not page._refused({})


def test_what_is_said_now_is_counted_beside_what_was_said_first(monkeypatch):
    monkeypatch.setattr(page, "exhibit", lambda _: replace(ONE, later=4))
    silent = {"bad": {"alarms": []}, "good": {"alarms": [ALARM]}}
    right = {"bad": {"alarms": [ALARM]}, "good": {"alarms": []}}
    said = page._count(["a", "b"], {"a": {**silent, "since": right}, "b": right})
    assert "2 exhibits: the bad release is named in 1, the good one is silent in 1." in said
    now = "2 exhibits: the bad release is named in 2, the good one is silent in 2."
    assert f"All, with what is said now: {now}" in said


def test_rounds_are_counted_apart(monkeypatch):
    rounds = {"a": replace(ONE, later=1), "b": replace(ONE, later=2), "c": ONE}
    monkeypatch.setattr(page, "exhibit", rounds.get)
    sides = {"bad": {"alarms": [ALARM]}, "good": {"alarms": []}}
    said = page._count(list(rounds), {**dict.fromkeys("abc", sides), "b": {**sides, "bad": {}}})
    assert "3 exhibits: the bad release is named in 2" in said
    assert "Round 2 (\\*\\*): 1 exhibits: the bad release is named in 0" in said


def test_what_an_exhibit_that_is_run_once_gave_first_stays_published(monkeypatch):
    first = {"bad": {"release": "1", "alarms": []}, "good": {"release": "2", "alarms": []}}
    now = {**first, "bad": {"release": "1", "alarms": [ALARM]}}
    monkeypatch.setattr(command, "exhibit", lambda _: replace(ONE, later=2))
    kept = command.beside_published(first, now, "x")
    assert kept["bad"] == first["bad"] and kept["since"] == now
    assert "no longer a test of it: **1**: H53 advantages-depart." in page._since(kept["since"])
    monkeypatch.setattr(command, "exhibit", lambda _: ONE)
    heard = {**first, "bad": {**first["bad"], "peers": {"rlprobe": "nothing"}}}
    assert command.beside_published(heard, now, "x")["bad"] == {
        **now["bad"],
        "peers": {"rlprobe": "nothing"},
    }


def test_what_peers_said_is_kept_with_its_commit_until_they_are_asked_again(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "exhibit", lambda _: ONE)
    monkeypatch.setattr(page, "exhibit", lambda _: ONE)
    said = {"peers": {"rlprobe": "nothing"}, "peers_of": "abc1234"}
    kept = {side: {"release": "1", "alarms": [], **said} for side in ("bad", "good")}
    now = {side: {"release": "1", "alarms": []} for side in ("bad", "good")}
    (tmp_path / "x" / "1" / "run").mkdir(parents=True)
    ask_peers("x", now, tmp_path, {})
    again = command.beside_published(kept, now, "x")
    assert again["bad"] == kept["bad"]
    assert "1 exhibits is from the runs of commit abc1234" in page._count(["x"], {"x": again})
    asked = {side: {**now[side], "peers": {"rlprobe": "collapse"}} for side in now}
    replaced = command.beside_published(kept, asked, "x")
    assert replaced["good"] == asked["good"]
    assert "abc1234" not in page._count(["x"], {"x": replaced})


def test_stand_ins_for_vllm_are_on_the_path_only_where_vllm_is_stood_in_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "unpacked", lambda wheel, store: store / wheel)
    weights = replace(ONE, stands_in="quantised weights, which need a GPU")
    vllm = replace(ONE, stands_in="vLLM: samples with what it is given")
    assert run.STAND_INS not in run.paths_of("trl_scale_rewards", weights, "1", tmp_path)
    assert run.STAND_INS in run.paths_of("trl_scale_rewards", vllm, "1", tmp_path)


def test_a_wheel_that_cannot_be_had_is_said(tmp_path, monkeypatch):
    def fails(requirement, _):
        raise wheels.NotToBeHad(f"{requirement}: no network")

    monkeypatch.setattr(run, "unpacked", fails)
    found = run.run_exhibit("trl_scale_rewards", tmp_path)
    assert found["bad"]["not_had"] == "trl==0.22.1: no network"
    assert "no network" in page.said(found["bad"])


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
