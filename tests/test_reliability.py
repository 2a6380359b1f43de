"""It keeps working and loses nothing: what was found by `benchmarks/reliability`, case by case."""

import errno
import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.errors import ConfigError, TraceError
from flatline.experiment import registration, runs, supervise
from flatline.experiment.outcome import OUTCOME_FILE
from flatline.files import write_atomically
from flatline.journal import board
from flatline.trace import backlog, files, lock, writer
from flatline.trace.files import StreamFile
from flatline.trace.lock import folder_lock, is_held
from flatline.trace.writer import Writer
from tests.experiments import config_plan
from tests.journals import journal_at

# -- the recorder and its disk ----------------------------------------------------------------


class Stuck(io.RawIOBase):
    """A file on a disk that does not answer."""

    def __init__(self):
        self.go = threading.Event()

    def writable(self):
        return True

    def write(self, data):
        self.go.wait(20)
        return len(data)


def stuck_writer(folder):
    sink, disk = Writer(folder), Stuck()
    sink._file("rollouts")._file = io.BufferedWriter(disk, buffer_size=1)
    sink.write("rollouts", [{"step": 1, "rollout": 0}])
    return sink, disk


def test_behind_a_disk_that_never_answers_memory_stays_bounded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backlog, "LAST_BYTES", 50_000)
    monkeypatch.setattr(backlog, "ROOM_WAIT", 0.01)
    monkeypatch.setattr(writer, "CLOSE_WAIT", 0.1)
    sink, disk = stuck_writer(tmp_path)
    for step in range(100):
        sink.write("rollouts", [{"step": step, "rollout": 0, "completion": "x" * 2000}])
    assert sink.failed
    assert sink._backlog._held == 0
    assert capsys.readouterr().err.count("recording stopped") == 1
    disk.go.set()
    sink.close()


def test_a_message_that_cannot_be_printed_still_ends_the_recording(tmp_path, monkeypatch):
    """A log file on the disk that is full takes no message about it."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StreamFile, "append", full)
    monkeypatch.setattr(sys, "stderr", type("Full", (), {"write": full, "flush": full})())
    sink = Writer(tmp_path)
    sink.write("steps", [{"step": 1}])
    sink.end_step()
    assert sink.failed
    sink.close()


def test_the_new_file_is_on_the_disk_before_the_old_one_goes(tmp_path, monkeypatch):
    seen = []
    fsync = os.fsync

    def spy(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".half"):
            seen.append((tmp_path / "steps.r0.0.arrow").exists())
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", spy)
    with_steps = Writer(tmp_path)
    with_steps.write("steps", [{"step": 1}])
    with_steps.close()
    assert seen == [True, True]
    assert (tmp_path / "steps.r0.0.parquet").exists()


# -- files and locks --------------------------------------------------------------------------


def test_writing_a_file_never_touches_the_umask_of_the_process(tmp_path, monkeypatch):
    """Two threads that set and restore it can leave the process without one."""
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was changed"))
    write_atomically(tmp_path / "x", ["a"])
    monkeypatch.undo()
    (tmp_path / "usual").touch()
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "usual")}
    assert len(modes) == 1


HOLDER = """
import sys, time
from pathlib import Path
from flatline.trace.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(30)
"""


def test_a_lock_of_a_process_that_hangs_is_an_error_that_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock, "SAY_AFTER", 0.1)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGSTOP)
    with (
        pytest.raises(TraceError, match=rf"process {holder.pid}, which has not let go(.|\n)*hangs"),
        folder_lock(tmp_path, patience=0.3),
    ):
        pass
    assert f"waiting for {tmp_path}" in capsys.readouterr().err
    assert is_held(tmp_path / ".lock.r0")
    holder.kill()
    holder.communicate()
    with folder_lock(tmp_path, patience=0.3):
        pass


def test_a_lock_that_changes_hands_is_waited_for(tmp_path):
    """Eight writers in a queue: nobody hangs, however long the last one waits."""
    order = []

    def hold(number):
        with folder_lock(tmp_path, patience=0.5):
            order.append(number)
            time.sleep(0.1)

    threads = [threading.Thread(target=hold, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(order) == list(range(8))


def test_two_investigations_that_register_a_plan_at_once_register_one(tmp_path, monkeypatch):
    moments = iter(range(100))

    class Ticking(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=next(moments))

    monkeypatch.setattr(registration, "datetime", Ticking)
    write = registration.write_atomically

    def slowly(*args):
        time.sleep(0.05)
        write(*args)

    monkeypatch.setattr(registration, "write_atomically", slowly)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(registration.register(config_plan(), tmp_path))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({plan.registered for plan in found}) == 1
    assert registration.load_plan(tmp_path) == found[0]


# -- runs of an experiment --------------------------------------------------------------------

COUNTING = "import sys; open(sys.argv[1], 'a').write('x'); sys.exit(int(sys.argv[2]))"


def job_of(folder, *, code=0):
    command = (sys.executable, "-IS", "-c", COUNTING, str(folder / "count"), str(code))
    plan = config_plan()
    made = runs.job_of(plan.control, 0, folder / "runs")
    return runs.replace(made, command=command, config=None)


def test_a_run_that_ended_well_and_was_not_measured_is_measured_and_not_made_again(
    tmp_path, monkeypatch
):
    job = job_of(tmp_path)
    monkeypatch.setattr(runs, "_recorded", lambda job: job.path)

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        runs.run(job)
    seen = []
    monkeypatch.setattr(runs, "measure", lambda folder, trace, seconds: seen.append(seconds))
    assert runs.run(job) is None
    assert (tmp_path / "count").read_text() == "x"
    assert seen and seen[0] > 0


def test_a_run_that_ended_well_and_recorded_nothing_is_made_again(tmp_path):
    job = job_of(tmp_path)
    for _ in range(2):
        assert "recorded nothing" in runs.run(job)
    assert (tmp_path / "count").read_text() == "xx"


def test_a_disk_that_is_full_when_a_run_is_measured_is_told_and_costs_no_run(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    monkeypatch.setattr(runs, "_recorded", lambda job: job.path)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "measure", full)
    with pytest.raises(ConfigError, match=r"No space left.*\n.*kept.*\n.*same command"):
        runs.run(job)
    monkeypatch.setattr(runs, "measure", lambda *_, **__: None)
    assert runs.run(job) is None
    assert (tmp_path / "count").read_text() == "x"


ENDS_WELL_WHEN_ASKED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(30)
"""


def test_a_command_that_ends_well_because_it_was_asked_to_has_not_ended_well(tmp_path):
    mark = tmp_path / "ended"
    command = [sys.executable, "-IS", "-c", ENDS_WELL_WHEN_ASKED]
    child = subprocess.Popen(
        [sys.executable, "-IS", supervise.__file__, "5", mark, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"ready\n"
    child.stdin.close()
    assert child.wait(10) == 0
    assert not mark.exists()
    done = [sys.executable, "-IS", supervise.__file__, "5", mark, sys.executable, "-c", "pass"]
    with subprocess.Popen(done, stdin=subprocess.PIPE) as child:
        assert child.wait(10) == 0
    assert json.loads(mark.read_text())["seconds"] > 0
    assert OUTCOME_FILE not in [path.name for path in tmp_path.iterdir()]


# -- the command line -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_told_without_a_traceback(tmp_path, monkeypatch, number):
    journal = journal_at(tmp_path / "journal")
    monkeypatch.setattr(board, "is_current", lambda *_: False)

    def fail(_):
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(board, "refresh", fail)
    done = CliRunner().invoke(app, ["journal", "status", str(journal.path)])
    assert done.exit_code == 2
    assert f"some/file cannot be written: {os.strerror(number)}" in done.stderr
    assert "type the same command again" in done.stderr


def test_an_interrupted_command_says_that_what_has_finished_is_kept(tmp_path, monkeypatch):
    journal = journal_at(tmp_path / "journal")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(board, "to_json", interrupt)
    done = CliRunner().invoke(app, ["journal", "status", str(journal.path), "--json"])
    assert done.exit_code == 130
    assert "what has finished is kept" in done.stderr
