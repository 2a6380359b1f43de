"""What an eleventh round of logs showed: each mended in the general mechanism, on made numbers."""

import json

import numpy as np
import pytest

from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event, trend_told
from flatline.trace.importers import open_log
from tests.test_fifth_logs import RNG, around, log, same_noise  # noqa: F401

# A reward that is gone several times.

OUT = ((143, 161), (268, 271))
ROWS = 320


def twice_gone(out=OUT, left=0.01, **more):
    """Nearly nothing is paid in some steps, and a step takes longer; the answers go on."""
    step = np.arange(1, ROWS + 1)
    gone = np.any([(step >= first) & (step <= last) for first, last in out], axis=0)
    learned = around(np.linspace(0.25, 0.5, ROWS), ROWS, 0.04)
    columns = {
        "reward": np.where(gone, left * RNG.uniform(0.5, 1.5, ROWS), learned),
        "zero_std_share": around(np.where(gone, 0.87, 0.25), ROWS, 0.03).clip(0, 1),
        "Seq Length": around(np.linspace(4000, 5000, ROWS), ROWS, 50),
        "Time_s": around(np.where(gone, 295, 74), ROWS, 3),
        "eval__acc": [
            (0.004 if gone[at - 1] else 0.18 + at / 2000) if at % 40 == 0 else None for at in step
        ],
    }
    return log(**(columns | more))


def test_all_outages_are_in_the_first_sentence_the_longest_with_its_edges():
    text = main_event(twice_gone()).text
    assert text.startswith("In steps 143 to 161 your reward is gone: about 0.0")
    assert " at step 143, " in text and " at step 162)" in text
    assert "it is gone in steps 268 to 271, too" in text


def test_the_first_of_two_outages_may_be_the_short_one():
    text = main_event(twice_gone(out=((60, 63), (200, 230)))).text
    assert text.startswith("In steps 200 to 230") and "it is gone in steps 60 to 63, too" in text


def test_what_moves_in_an_outage_is_told_and_that_the_length_does_not_under_any_name():
    text = main_event(twice_gone()).text
    assert "`Time_s` rises from 7" in text
    assert "share of groups with equal rewards rises from 2" in text
    assert text.endswith("`Seq Length` does not change.")


def test_an_evaluation_in_any_of_the_outages_is_told_as_such():
    found = main_event(twice_gone(out=((60, 79), (158, 162))))
    assert "`eval/acc` of step 160 (0.004) was taken in these steps" in found.after


def test_the_trend_leaves_out_the_steps_of_all_outages_and_says_so():
    text = trend_told(twice_gone()).text
    assert "The training reward rises by +0.1" in text
    assert "Left out: steps 143 to 161 and 268 to 271, in which it is gone." in text


def test_levels_and_highest_rows_are_told_without_the_steps_of_outages():
    told = remarks_of(twice_gone())
    assert told[0].startswith("The reward is gone in steps 143 to 161 and 268 to 271;")
    assert "at most (step" not in told[1] and "around step" not in told[1]
    assert not any("lacks steps" in one for one in told)


def test_noise_that_is_0_now_and_then_has_no_outages():
    for trials, share in ((4, 0.5), (8, 0.3), (32, 0.1)):
        for _ in range(20):
            trace = log(reward=RNG.binomial(trials, share, ROWS) / trials)
            assert "is gone" not in " ".join(remarks_of(trace))


def test_a_row_at_the_edge_of_a_low_stretch_is_not_told_as_the_highest():
    for edge in (0.2, 0.3, 0.38):
        for _ in range(10):
            values = around(np.linspace(0.25, 0.5, ROWS), ROWS, 0.05)
            values[142:161], values[161] = 0.01 * RNG.uniform(0.5, 1.5, 19), edge
            told = " ".join(remarks_of(log(reward=around(0.5, ROWS), novel=values)))
            assert "at most (step 16" not in told


def test_a_row_that_stands_out_below_another_stretch_is_not_told_as_the_highest():
    values = around(np.repeat([0.01, 1.0], 100), 200, 0.001)
    values[50] = 0.3
    told = " ".join(remarks_of(log(reward=around(0.5, 200), novel=values)))
    assert "is 0.3 (step 51)" in told


# A clock.


def written(tmp_path, name, values):
    path = tmp_path / "log.jsonl"
    rows = [
        {"step": at, "reward": 0.4 + 0.1 * RNG.normal(), name: float(value)}
        for at, value in enumerate(values, 1)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return open_log(path)


@pytest.mark.parametrize("name", ["sec", "step_time", "timing_s/step"])
def test_a_column_that_counts_up_is_no_time_of_a_step_and_tells_how_long_the_run_took(
    tmp_path, name
):
    clock = np.cumsum(around(42, 46, 4)).round(1)
    trace = written(tmp_path, name, clock)
    assert np.nanmean(trace.steps["seconds"]) == pytest.approx(42, rel=0.05)
    told = " ".join(remarks_of(trace))
    assert "times as long" not in told
    assert f"The run took {clock[-1]:,.0f} seconds (`{name}`)" in told
    assert any(f"{name!r} counts up" in note for note in trace.run["notes"])


def test_a_clock_that_begins_anew_where_a_run_was_resumed_is_one_all_the_same(tmp_path):
    each = around(42, 60, 4)
    trace = written(tmp_path, "sec", [*np.cumsum(each[:40]), *np.cumsum(each[40:])])
    seconds = trace.steps["seconds"]
    assert np.isnan(seconds[[0, 40]]).all() and np.nanmax(seconds) < 70
    assert f"The run took {each.sum():,.0f} seconds" in " ".join(remarks_of(trace))


def test_a_step_that_takes_longer_and_longer_is_no_clock(tmp_path):
    trace = written(tmp_path, "step_time", around(np.linspace(40, 400, 60), 60, 10))
    assert "A step takes" in " ".join(remarks_of(trace))


# An evaluation between two steps.


def test_an_evaluation_after_the_row_of_a_step_is_of_the_step_that_begins_next(tmp_path):
    lines = []
    for at in range(12):
        if at % 4 == 0:
            lines.append(f"10:00:{at:02} SUCCESS Evaluated aime in 4.10s (Avg@4=0.{at + 10})")
        lines.append(f"10:00:{at:02}    INFO Starting orchestrator step {at}")
        lines.append(
            f"10:01:{at:02} SUCCESS Step {at} | Time: 7.3s | Reward: 0.2188 | Async Level: 1"
        )
    path = tmp_path / "orchestrator.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    trace = open_log(path)
    known = np.isfinite(trace.steps["heldout_reward"])
    assert trace.steps["step"][known].tolist() == [0, 4, 8]
