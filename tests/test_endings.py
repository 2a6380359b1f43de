"""How a recording ends: what the person is told, and what the diagnosis says of it later."""

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from flatline import diagnose
from flatline.diagnosis.outcome import Outcome
from flatline.trace import Recorder, Trace, account
from flatline.trace.files import StreamFile
from flatline.trace.writer import Writer
from tests.traces import healthy_rows, run_facts

DIES = """
import sys
from flatline.trace import Recorder
recorder = Recorder(sys.argv[1])
for step in (1, 2):
    recorder.log_step(step=step, reward=0.5)
def pay():
    {}
pay()
"""


def refused(number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    return refuse


def steps(sink, *numbers):
    for step in numbers:
        sink.write("steps", [{"step": step, "reward": 0.5}])
        sink.end_step()


def whole(folder, *, lose=None):
    """A run of 12 steps, with all that a diagnosis asks for."""
    rows = healthy_rows(steps=12)
    sink = Writer(folder, run={**run_facts(), "source": "attach"})
    for table, found in rows.items():
        sink.write(table, found)
    sink.end_step()
    if lose:
        (folder / lose).unlink()
    sink.update_run(notes=["Something that was seen later."])
    sink.close()
    return folder


# -- what is said at the end ------------------------------------------------------------------


def test_a_recording_that_is_whole_is_said_to_be_there(tmp_path, capsys):
    sink = Writer(tmp_path)
    steps(sink, 1, 2)
    sink.close()
    sink.say_recorded()
    assert f"recorded in {tmp_path}. Next:" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["the disk", "what makes the rows"])
def test_a_recording_that_broke_off_is_said_to_go_only_so_far(tmp_path, monkeypatch, capsys, by):
    sink = Writer(tmp_path)
    steps(sink, 1, 2)
    if by == "the disk":
        monkeypatch.setattr(StreamFile, "append", refused(errno.ENOSPC))
    else:
        sink.stop("it does not know this model")
    steps(sink, 3)
    sink.close(clean=by == "the disk")
    sink.say_recorded()
    said = capsys.readouterr().err
    assert f"recorded in {tmp_path}, up to step 2 only, where the recording broke off." in said


def test_a_run_that_was_removed_is_not_said_to_be_there(tmp_path, capsys):
    sink = Writer(tmp_path / "run")
    steps(sink, 1)
    shutil.rmtree(tmp_path / "run")
    steps(sink, 2)
    sink.close()
    sink.say_recorded()
    said = capsys.readouterr().err
    assert "recorded in" not in said
    assert f"nothing of this run is left in {tmp_path / 'run'}" in said


# -- files that may not be written ------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_stops_the_recording_and_is_told_as_that(
    tmp_path, monkeypatch, capsys, number
):
    sink = Writer(tmp_path, run=run_facts())
    steps(sink, 1, 2)
    monkeypatch.setattr(StreamFile, "flush", refused(number))
    steps(sink, 3, 4)
    monkeypatch.undo()
    sink.close()
    words = f"could not write: {os.strerror(number)} ({errno.errorcode[number]})"
    assert f"recording stopped, the training goes on: {words}" in capsys.readouterr().err
    report = diagnose(tmp_path, hypotheses=())
    assert "broke off after step 2" in report.answer.headline and words in report.answer.headline
    assert report.outcome is Outcome.UNEXPLAINED
    assert not any("crashed" in said for said in (*report.caveats, report.summary))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_the_reason_is_written_beside_an_account_that_may_not_be_written_over(
    tmp_path, monkeypatch, number
):
    sink = Writer(tmp_path)
    steps(sink, 1, 2)
    monkeypatch.setattr(StreamFile, "flush", refused(number))
    monkeypatch.setattr(account.os, "pwrite", refused(number))
    steps(sink, 3)
    sink.close()
    trace = Trace.open(tmp_path)
    assert "broke off after step 2" in trace.stopped
    assert errno.errorcode[number] in trace.stopped


def test_a_run_whose_files_cannot_be_packed_is_whole_and_no_crash(tmp_path, monkeypatch, capsys):
    sink = Writer(tmp_path)
    steps(sink, 1, 2)
    monkeypatch.setattr(Path, "unlink", refused(errno.EPERM))
    sink.close()
    monkeypatch.undo()
    sink.say_recorded()
    said = capsys.readouterr().err
    assert "recording stopped" not in said and f"recorded in {tmp_path}. Next:" in said
    trace = Trace.open(tmp_path)
    assert trace.stopped is None and trace.warnings == []
    assert trace.steps["step"].tolist() == [1, 2]
    assert trace.run["ended"] and any("EPERM" in caveat for caveat in trace.caveats)


# -- `run.json` is removed --------------------------------------------------------------------


def test_facts_of_a_run_outlive_the_removal_of_their_file_while_it_records(tmp_path):
    kept, lost = (Trace.open(whole(tmp_path / str(lose), lose=lose)) for lose in (None, "run.json"))
    assert lost.settings == kept.settings and lost.warnings == []
    assert lost.run["schema"] == kept.run["schema"] and lost.run["ended"]
    assert lost.run["notes"] == ["Something that was seen later."]


def test_a_run_without_its_facts_says_what_could_not_be_tested_for_want_of_them(tmp_path):
    before = diagnose(whole(tmp_path))
    (tmp_path / "run.json").unlink()
    after = diagnose(tmp_path)
    unknown = {one.hypothesis for one in after.findings if one.level == "unknown"}
    lost = unknown - {one.hypothesis for one in before.findings if one.level == "unknown"}
    (told,) = [caveat for caveat in after.caveats if caveat.startswith("Not tested")]
    assert "run.json" in told and {"H18", "H31"} <= lost
    assert all(code in told for code in ("H18", "H31"))
    (beta,) = [one for one in after.findings if one.hypothesis == "H31"]
    assert "settings.beta" in beta.text and "run.json" in beta.text
    assert any("run.json is missing" in caveat for caveat in after.caveats)


def test_facts_that_were_written_after_the_file_was_lost_are_not_taken_for_all(tmp_path):
    whole(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"ended": "2026-01-01"}))
    assert any("run.json is missing" in warning for warning in Trace.open(tmp_path).warnings)


# -- trainings that die -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise ValueError('no `answer` in the row')", "ValueError: no 'answer' in the row"),
        ("raise MemoryError", "MemoryError"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting property name"),
    ],
)
def test_a_script_that_died_while_it_recorded_says_where_and_of_what(tmp_path, line, said):
    script = tmp_path / "train.py"
    script.write_text(DIES.format(line))
    folder = tmp_path / "run"
    code = [sys.executable, str(script), str(folder)]
    assert subprocess.run(code, capture_output=True, timeout=60, check=False).returncode == 1
    report = diagnose(folder, hypotheses=())
    assert report.answer.headline.startswith("This training died after step 2 with an error: ")
    assert said in report.answer.headline
    assert report.answer.headline.endswith(f", at {script}:8.")
    assert report.outcome is Outcome.UNEXPLAINED
    assert Trace.open(folder).stopped in Trace.open(folder).caveats


def test_a_block_that_ends_with_an_error_tells_it_and_keeps_nothing_of_it(tmp_path):
    class Held:
        """What a frame of a failed pass has in memory."""

    def fails():
        held = Held()
        seen.append(weakref.ref(held))
        raise KeyError("answer")

    seen = []
    with pytest.raises(KeyError), Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.5)
        fails()
    gc.collect()
    ending = Trace.open(tmp_path).ending
    assert (ending.step, ending.kind, ending.said) == (1, "KeyError", "'answer'")
    assert ending.where.startswith(__file__)
    assert seen[0]() is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_death(tmp_path, kind):
    with pytest.raises(kind), Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.5)
        raise kind
    assert "was interrupted after step 1" in Trace.open(tmp_path).stopped
    assert diagnose(tmp_path, hypotheses=()).troubles == []


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "error", [ValueError("\x1b[2J<script>\ud800\n::add-mask::x" + "y" * 10**6), Speechless()]
)
def test_what_an_error_says_is_shown_and_not_obeyed(tmp_path, error):
    with pytest.raises(type(error)), Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.5)
        raise error
    assert (tmp_path / "recording.r0.0.json").stat().st_size == account.SIZE
    headline = diagnose(tmp_path, hypotheses=()).answer.headline
    assert type(error).__name__ in headline and len(headline) < 1000
    assert headline.isprintable()
    headline.encode("utf-8")


def test_a_later_start_that_ended_well_leaves_no_death(tmp_path):
    for step, error in ((1, ValueError("x")), (2, None)):
        try:
            with Recorder(tmp_path) as recorder:
                recorder.log_step(step=step, reward=0.5)
                if error:
                    raise error
        except ValueError:
            pass
    trace = Trace.open(tmp_path)
    assert trace.ending is None and trace.stopped is None


def test_an_account_that_somebody_made_up_is_no_death(tmp_path):
    with pytest.raises(ValueError), Recorder(tmp_path) as recorder:
        recorder.log_step(step=1, reward=0.5)
        raise ValueError
    file = tmp_path / "recording.r0.0.json"
    for made_up in ({"step": "1"}, ["x"], {"step": 1, "kind": 2, "said": None, "where": {}}):
        file.write_text(json.dumps(account.sealed({"died": made_up})))
        assert Trace.open(tmp_path).ending is None
