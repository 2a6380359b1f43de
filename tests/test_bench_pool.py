"""Cells run once each, several at a time, and whatever ends the benchmark leaves nothing behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.plan import Cell, Kind
from bench.pool import How, folder_of, run_cells, unfinished
from flatline.errors import ConfigError

CHILD = (sys.executable, str(Path(__file__).with_name("bench_child.py")))


def cell(name, **changes):
    changes = {"max_steps": 40, "seed": 0, **changes}
    return Cell(name=name, kind=Kind.FAULT, changes=changes)


def run(cells, out, *, jobs=2, minutes=None):
    told = []
    how = How(jobs=jobs, minutes=minutes, command=CHILD)
    left = run_cells(cells, out, how, lambda cell, result: told.append((cell.name, result)))
    return left, dict(told)


def test_every_cell_runs_once_with_one_thread(tmp_path):
    cells = [cell("a"), cell("b"), cell("c")]
    left, told = run(cells, tmp_path)
    assert left == 0 and sorted(told) == ["a", "b", "c"]
    assert (folder_of(tmp_path, cells[0]) / "started").read_text() == "1"


def test_a_finished_cell_is_never_run_again(tmp_path):
    cells = [cell("a"), cell("b")]
    run(cells[:1], tmp_path)
    assert unfinished(cells, tmp_path) == cells[1:]


def test_a_cell_that_crashes_is_a_result_and_the_others_go_on(tmp_path):
    _, told = run([cell("crash"), cell("b")], tmp_path, jobs=1)
    assert told["crash"]["crash"] == {"exit_code": 1, "tail": ["out of everything"]}
    assert told["b"]["seconds"] == 1.0
    assert unfinished([cell("crash")], tmp_path) == []


def test_a_cell_that_was_broken_off_starts_anew(tmp_path):
    folder = folder_of(tmp_path, cell("a"))
    folder.mkdir(parents=True)
    (folder / "half").touch()
    run([cell("a")], tmp_path)
    assert not (folder / "half").exists()


def test_a_result_of_other_settings_is_refused(tmp_path):
    run([cell("a")], tmp_path)
    with pytest.raises(ConfigError, match="other settings"):
        unfinished([cell("a", max_steps=10)], tmp_path)


def test_a_result_that_is_no_result_says_what_to_remove(tmp_path):
    run([cell("a")], tmp_path)
    (folder_of(tmp_path, cell("a")) / "cell.json").write_text("[]")
    with pytest.raises(ConfigError, match="Remove its folder"):
        unfinished([cell("a")], tmp_path)


def test_an_interrupt_ends_the_cells_and_keeps_them_unfinished(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from tests.test_bench_pool import cell, run\n"
        f"run([cell('slow-a'), cell('slow-b'), cell('c')], Path({str(tmp_path)!r}))\n"
    )
    started = tmp_path / "cells" / "slow-a" / "started"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL
    ) as process:
        _wait_for(started)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert unfinished([cell("slow-a"), cell("c")], tmp_path) == [cell("slow-a"), cell("c")]
    assert not (tmp_path / "cells" / "c").exists()


def _wait_for(path):
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
