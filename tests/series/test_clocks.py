"""What a step costs and how long a run took: clocks, seconds, batches, and what counts the rows."""

import json

import numpy as np
import pytest

from flatline.trace.importers import open_log
from tests.series.made import RNG, around, line, log, said


def written(folder, rows):
    path = folder / "run.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return open_log(path)


def timed(folder, name, values):
    return written(
        folder,
        (
            {"step": at, "reward": 0.4 + 0.1 * RNG.normal(), name: float(value)}
            for at, value in enumerate(values, 1)
        ),
    )


@pytest.mark.parametrize("name", ["sec", "step_time", "timing_s/step"])
def test_a_column_that_counts_up_is_no_time_of_a_step_and_tells_how_long_the_run_took(
    tmp_path, name
):
    clock = np.cumsum(around(42, 46, 4)).round(1)
    trace = timed(tmp_path, name, clock)
    assert np.nanmean(trace.steps["seconds"]) == pytest.approx(42, rel=0.05)
    assert "times as long" not in said(trace)
    assert f"{clock[-1]:,.0f} seconds (`{name}`)" in said(trace)
    assert any(f"{name!r} counts up" in note for note in trace.run["notes"])


def test_a_clock_that_begins_anew_where_a_run_was_resumed_is_one_all_the_same(tmp_path):
    each = around(42, 60, 4)
    trace = timed(tmp_path, "sec", [*np.cumsum(each[:40]), *np.cumsum(each[40:])])
    seconds = trace.steps["seconds"]
    assert np.isnan(seconds[[0, 40]]).all() and np.nanmax(seconds) < 70
    assert f"{each.sum():,.0f} seconds" in said(trace)


def test_the_time_of_day_is_no_remark():
    clock = 1.76e9 + 60 * np.arange(80)
    for unit in (1, 1000):
        assert "`tick`" not in said(log(reward=around(0.5, 80), tick=unit * clock))


def costly(folder, batches):
    rows = len(batches)
    columns = {
        "reward": line(0.2, 0.6, rows),
        "train/num_gen_batches": batches,
        "timing_s/gen": around(80 * batches, rows, 3.0),
        "timing_s/update": around(20.0, rows, 0.5),
    }
    columns["timing_s/step"] = columns["timing_s/gen"] + columns["timing_s/update"]
    named = [{n: float(v[at]) for n, v in columns.items()} for at in range(rows)]
    return said(written(folder, ({"step": at, **row} for at, row in enumerate(named))))


def test_batches_that_a_step_samples_and_its_seconds_are_told_where_they_grow(tmp_path):
    told = costly(tmp_path, np.round(np.linspace(2, 9, 120)))
    assert told.count("num_gen_batches") == 1 and "`train/num_gen_batches` is 2" in told
    assert "times as long at the end: " in told and "most of it `timing_s/gen` (" in told
    steady = costly(tmp_path, around(5, 120, 0.5).round())
    assert "sampled batches to fill" not in steady and "as long at the end" not in steady


# What counts the rows.


def counted(rows):
    return [{"pay": 0.5, "lap": at} for at in range(rows)]


def test_the_one_column_that_counts_the_rows_is_the_step(tmp_path):
    trace = written(tmp_path, [{"seats": 400, "word_cap": 3000}, *counted(40), {"eval/acc": 0.25}])
    assert trace.steps["step"].tolist() == list(range(40)) and not trace.warnings
    assert trace.run["notes"][0] == "`lap` is the step: it counts the rows."
    assert trace.metric("eval/acc")[-1] == 0.25


@pytest.mark.parametrize("rows", [counted(10), [*counted(20), {"pay": 0.5, "lap": 25}] * 2])
def test_no_other_column_is_and_none_of_a_few_rows(tmp_path, rows):
    notes = written(tmp_path, rows).run["notes"]
    assert notes[0] == "The log names no step: its rows are numbered from 1."
