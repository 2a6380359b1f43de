"""Nothing of a trace is lost without a word: damaged checksums, footers and facts, and recordings
that broke off while the training went on."""

import io
import json
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flatline.diagnosis.report import diagnose
from flatline.errors import TraceError
from flatline.heldout import FILE as HELD_OUT
from flatline.heldout import HeldOutScore, lines_of, read_scores
from flatline.live.hooks import Guard
from flatline.report.series import Run, heldout_plays
from flatline.trace import Trace, files, writer
from flatline.trace.lock import is_live
from flatline.trace.writer import MemorySink, Writer
from tests.traces import healthy_rows, rollout_rows, run_facts

sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "reliability"))

import attacks

STEPS = 6


@pytest.fixture(autouse=True)
def nobody_writes(monkeypatch):
    """No line is about to be written, so none is waited for."""
    monkeypatch.setattr(files, "LINE_WAIT", 0.0)


def run_of(folder, *, clean=False, steps=range(1, STEPS + 1)):
    sink = Writer(folder, run=run_facts())
    for step in steps:
        sink.write("rollouts", rollout_rows([[0.0, 1.0]], step=step))
        sink.write("steps", [{"step": step, "reward": float(step), "kl": 0.5}])
        sink.end_step()
    sink.close(clean=clean)
    return folder


def told(folder):
    """The steps that are read, and what is said."""
    trace = Trace.open(folder)
    return trace.tables["steps"].column("step").to_pylist(), trace.warnings


def lines_in(path):
    return path.read_text().splitlines(keepends=True)


# -- the checksums of a stream ----------------------------------------------------------------


def test_an_emptied_checksum_file_costs_no_finding_and_is_said(tmp_path):
    rows = healthy_rows(steps=20)
    for row in rows["steps"]:
        row["kl"] = row["kl_max"] = 40.0
    sink = Writer(tmp_path, run=run_facts())
    for table, found in rows.items():
        sink.write(table, found)
    sink.close(clean=False)
    before = diagnose(Trace.open(tmp_path))
    for path in tmp_path.glob("*.crc"):
        path.write_text("")
    after = diagnose(Trace.open(tmp_path))
    assert after.findings == before.findings
    assert (before.damaged, after.damaged) == (False, True)
    assert any("has no checksum for" in text for text in after.caveats)


def test_checksums_cut_off_at_any_byte_cost_no_row_and_are_said(tmp_path):
    path = run_of(tmp_path) / "steps.r0.0.crc"
    data = path.read_bytes()
    for end in range(0, len(data), 13):
        path.write_bytes(data[:end])
        steps, said = told(tmp_path)
        assert steps == [*range(1, STEPS + 1)]
        assert len(said) == 1 and "has no checksum for" in said[0]


@pytest.mark.parametrize("line", [0, 1, STEPS])
def test_a_lost_line_of_checksums_is_said_and_its_batch_is_read(tmp_path, line):
    path = run_of(tmp_path) / "steps.r0.0.crc"
    lines = lines_in(path)
    del lines[line]
    path.write_text("".join(lines))
    steps, said = told(tmp_path)
    assert steps == [*range(1, STEPS + 1)]
    assert len(said) == 1 and f"batches read: {int(line > 0)}" in said[0]


def test_a_batch_that_was_not_written_whole_is_said(tmp_path):
    path = run_of(tmp_path) / "steps.r0.0.arrow"
    with path.open("ab") as file:
        file.write(path.read_bytes()[-700:-9])
    steps, said = told(tmp_path)
    assert steps == [*range(1, STEPS + 1)]
    assert "What follows them is lost" in said[0]


@pytest.mark.parametrize(
    ("clean", "gone", "sums"),
    [
        (False, "steps.r0.0.arrow", "steps.r0.0.crc"),
        (True, "steps.r0.0.parquet", "steps.r0.0.parquet.crc"),
    ],
)
def test_a_file_that_is_gone_is_missed_because_of_its_checksums(tmp_path, clean, gone, sums):
    (run_of(tmp_path, clean=clean) / gone).unlink()
    assert told(tmp_path) == ([], [f"The file that {sums} is about is missing."])


def test_checksums_of_an_older_flatline_are_believed_as_they_are(tmp_path):
    run_of(tmp_path)
    for path in tmp_path.glob("*.crc"):
        old = [" ".join(line.split()[:3]) + "\n" for line in lines_in(path)]
        path.write_text("".join(old))
    assert told(tmp_path) == ([*range(1, STEPS + 1)], [])


def test_a_reader_waits_for_the_line_of_what_it_saw(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LINE_WAIT", 10.0)
    path = run_of(tmp_path) / "steps.r0.0.crc"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    late = threading.Timer(0.1, lambda: path.write_bytes(whole))
    late.start()
    assert told(tmp_path) == ([*range(1, STEPS + 1)], [])
    late.join()


# -- parquet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("emptied", [True, False])
def test_parquet_without_all_of_its_checksums_is_read_and_said(tmp_path, emptied):
    path = run_of(tmp_path, clean=True) / "steps.r0.0.parquet.crc"
    path.write_text("") if emptied else path.unlink()
    steps, said = told(tmp_path)
    assert steps == [*range(1, STEPS + 1)]
    assert len(said) == 1 and "may go unseen" in said[0]


def test_parquet_of_an_older_flatline_is_read_without_a_word(tmp_path):
    path = run_of(tmp_path, clean=True) / "steps.r0.0.parquet"
    old = {files.VERSION_KEY: b"1"}
    pq.write_table(pq.read_table(path).replace_schema_metadata(old), path, write_page_checksum=True)
    path.with_name(f"{path.name}.crc").unlink()
    assert told(tmp_path) == ([*range(1, STEPS + 1)], [])


# -- run.json ---------------------------------------------------------------------------------


def test_run_json_that_was_edited_is_read_and_said_and_may_be_without_its_checksum(tmp_path):
    path = run_of(tmp_path, clean=True) / "run.json"
    facts = json.loads(path.read_text())
    facts["settings"]["beta"] = 0.9
    path.write_text(json.dumps(facts))
    trace = Trace.open(tmp_path)
    assert trace.settings["beta"] == 0.9
    assert "run.json has changed since it was written" in trace.warnings[0]
    del facts["checksum"]
    path.write_text(json.dumps(facts))
    assert Trace.open(tmp_path).warnings == []


# -- held-out evaluations ---------------------------------------------------------------------


def scores_at(folder):
    scores = [
        HeldOutScore(step=step, problems=["a", "b"], rewards=[0.5, 0.25]) for step in (0, 5, 9)
    ]
    (folder / HELD_OUT).write_text("".join(f"{line}\n" for line in lines_of(scores)))
    return scores


@pytest.mark.parametrize("keep", [[0, 1], [0, 2], [0, 1, 2, 2], [1, 0, 2], []])
def test_evaluations_that_are_lost_repeated_or_swapped_are_refused(tmp_path, keep):
    assert read_scores(tmp_path) == []
    assert scores_at(tmp_path) == read_scores(tmp_path)
    lines = lines_in(tmp_path / HELD_OUT)
    (tmp_path / HELD_OUT).write_text("".join(lines[at] for at in keep))
    with pytest.raises(TraceError, match="cannot be read: it"):
        read_scores(tmp_path)


def test_a_changed_evaluation_is_refused_and_the_page_says_so(tmp_path):
    scores_at(run_of(tmp_path))
    path = tmp_path / HELD_OUT
    path.write_text(path.read_text().replace("0.25", "0.75", 1))
    with pytest.raises(TraceError, match="step 0 has changed since"):
        read_scores(tmp_path)
    run = Run(name="x", trace=Trace.open(tmp_path), folder=tmp_path)
    assert heldout_plays(run) == []
    assert "The held-out reward of the run is lost" in run.trace.warnings[-1]


def test_evaluations_of_an_older_flatline_are_read(tmp_path):
    line = {"step": 3, "problems": ["a"], "rewards": [1.0], "parts": {}, "plays": {}}
    (tmp_path / HELD_OUT).write_text(json.dumps(line) + "\n")
    assert read_scores(tmp_path)[0].step == 3


# -- recordings that broke off ----------------------------------------------------------------


def test_a_disk_that_never_answers_is_told_in_the_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CLOSE_WAIT", 0.1)
    go = threading.Event()

    class Stuck(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            go.wait(20)
            return len(data)

    sink = Writer(tmp_path)
    sink._file("rollouts")._file = io.BufferedWriter(Stuck(), buffer_size=1)
    sink.write("rollouts", [{"step": 1, "rollout": 0}])
    sink.close()
    trace = Trace.open(tmp_path)
    assert "has not answered" in trace.stopped and trace.stopped in trace.warnings
    go.set()


def test_an_error_in_what_makes_the_rows_is_told_in_the_trace(tmp_path):
    sink = Writer(tmp_path)
    guard = Guard(sink.stop)
    guard(lambda: 1 / 0)
    sink.close(clean=False)
    assert "ZeroDivisionError" in Trace.open(tmp_path).stopped
    memory = MemorySink()
    Guard(memory.stop)(lambda: 1 / 0)
    assert "ZeroDivisionError" in memory.trace().warnings[0]


def test_a_recording_that_broke_off_and_was_made_anew_from_there_is_whole(tmp_path):
    sink = Writer(tmp_path)
    sink.write("steps", [{"step": 1}, {"step": 2}])
    sink.end_step()
    sink.stop("the disk was full")
    sink.close(clean=False)
    assert "after step 2" in Trace.open(tmp_path).stopped
    run_of(tmp_path, clean=True, steps=range(3, 6))
    assert (Trace.open(tmp_path).stopped, Trace.open(tmp_path).warnings) == (None, [])


def test_a_run_that_was_not_closed_is_told_and_is_not_damaged(tmp_path):
    trace = Trace.open(run_of(tmp_path))
    assert "was not closed" in trace.stopped and "up to step 6" in trace.stopped
    assert trace.stopped in trace.caveats and trace.warnings == []
    assert Trace.open(run_of(tmp_path / "closed", clean=True)).stopped is None


def test_a_run_that_still_records_has_not_stopped(tmp_path):
    sink = Writer(tmp_path)
    assert is_live(tmp_path) and Trace.open(tmp_path).stopped is None
    sink.close(clean=False)
    assert not is_live(tmp_path)


def test_one_process_that_was_never_closed_is_told_though_the_first_one_ended(tmp_path):
    first, second = Writer(tmp_path), Writer(tmp_path, rank=1)
    second.close(clean=False)
    first.close()
    assert "was not closed" in Trace.open(tmp_path).stopped


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_left_out_or_dropped_is_known_from_the_trace(tmp_path, clean):
    sink = Writer(tmp_path)
    sink.write("rollouts", [{"step": 1, "rollout": 0, "hops": "two"}])
    sink._count_dropped(3)
    sink.end_step()
    sink.close(clean=clean)
    trace = Trace.open(tmp_path)
    assert trace.run["dropped_tokens"] == 3
    assert any("Left out of the recording" in text and "hops" in text for text in trace.caveats)
    assert (tmp_path / "recording.r0.0.json").exists() != clean


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    run = run_of(tmp_path / "run")
    for name in (".lock", ".lock.r0"):
        (run / name).unlink()
        (run / name).symlink_to(mine)
    assert not is_live(run)
    assert mine.read_text() == "precious"


# -- attacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_sample_of_attacks_loses_and_changes_nothing_without_a_word(tmp_path, clean):
    """All of them: `benchmarks/reliability/attacks.py`."""
    import random

    folder = tmp_path / "run"
    attacks.record(folder, clean=clean)
    chance = random.Random(0)
    planned = [*attacks.attacks(folder, 120, 331, chance)]
    done = attacks.struck(folder, 0, chance.sample(planned, min(len(planned), 150)))
    assert {outcome for _, outcome in done} <= {"equal", "said"}, [
        one for one in done if one[1] not in ("equal", "said")
    ]
