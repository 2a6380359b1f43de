"""Rewards that leave their level for a while: when, with what, and what is told without them."""

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.course import alike as likeness
from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event, trend_told
from tests.series.made import RNG, around, event_of, line, log, said

ROWS = 320
OUT = ((143, 161), (268, 271))


def judge_out(rows=120, begin=60, end=75, **more):
    """Some rewards are missing, and the share that is there says so."""
    inside = (np.arange(rows) >= begin) & (np.arange(rows) < end)
    columns = {
        "reward": around(np.where(inside, 0.2, 0.5), rows),
        "judge_ok": around(np.where(inside, 0.4, 0.995), rows, 0.004).clip(0, 1),
        "critic": around(np.where(inside, 0.06, 0.02), rows, 0.001),
        "kl": line(0.0, 0.02, rows, 0.0003).clip(0),
    }
    return log(**(columns | more))


def box_out(share=0.35, rows=200, begin=100, end=140):
    """Calls fail for a while, with some steps to go there, and what failed earns nothing."""
    steps = np.arange(rows)
    failed = np.interp(steps, [begin, begin + 8, end - 1, end], [0.05, share, share, 0.01])
    failed = around(np.where((steps >= begin) & (steps < end), failed, 0.01), rows, 0.01).clip(0, 1)
    return log(
        reward=around(np.linspace(0.5, 0.55, rows) * (1 - failed), rows, 0.03),
        box_failed=failed,
        t_box=around(17 + 190 * failed, rows, 0.5),
        grad_norm=around(0.3, rows, 0.01),
    )


def gone(out=OUT, left=0.01, **more):
    """Nearly nothing is paid in some steps, and a step takes longer; the answers go on."""
    step = np.arange(1, ROWS + 1)
    out = np.any([(step >= first) & (step <= last) for first, last in out], axis=0)
    learned = line(0.25, 0.5, ROWS, 0.04)
    columns = {
        "reward": np.where(out, left * RNG.uniform(0.5, 1.5, ROWS), learned),
        "zero_std_share": around(np.where(out, 0.87, 0.25), ROWS, 0.03).clip(0, 1),
        "Seq Length": line(4000, 5000, ROWS, 50),
        "Time_s": around(np.where(out, 295, 74), ROWS, 3),
        "eval__acc": [
            (0.004 if out[at - 1] else 0.18 + at / 2000) if at % 40 == 0 else None for at in step
        ],
    }
    return log(**(columns | more))


def test_an_event_that_passes_is_the_first_sentence_and_no_cause_is_claimed():
    report = diagnose(judge_out())
    assert report.answer.headline.startswith("In steps 61 to 75 your reward falls from 0.5")
    assert "`judge_ok` falls" in report.answer.headline
    assert report.outcome is not Outcome.ALARM


@pytest.mark.parametrize(("made", "share"), [(judge_out, "judge_ok"), (box_out, "box_failed")])
def test_an_outcome_that_falls_by_what_a_share_lacks_is_told_so(made, share):
    text = event_of(made())
    assert f"`{share}`" in text and "your reward stays at 0.5" in text


def test_columns_that_move_without_the_outcome_are_no_event():
    moved = {name: box_out().metric(name) for name in ("box_failed", "t_box")}
    assert main_event(log(reward=line(0.5, 0.55, 200, 0.03), **moved)) is None


def test_what_an_event_leaves_behind_is_told_and_what_comes_back_is_not():
    kl = line(0.0, 0.02, 120, 0.0003) + 0.03 * (np.arange(120) >= 62)
    assert main_event(judge_out(kl=kl.clip(0))).after.startswith("The KL is 0.00")
    assert main_event(judge_out()).after == ""


def test_what_lasts_is_no_event_that_passes():
    jump = np.repeat([0.0, 1.0], 50)
    trace = log(
        reward=around(0.5 + 0.3 * jump, 100),
        kl=around(0.1 + jump, 100, 0.01),
        entropy=around(0.4 + jump, 100, 0.01),
    )
    assert "this passes" not in said(trace)


@pytest.mark.parametrize("near", [0.0, 0.6])
def test_noise_of_many_columns_is_no_event(near):
    for seed in range(25):
        noise = np.random.default_rng(seed).standard_t(4, size=(8, 150))
        for at in range(1, 150):
            noise[:, at] += near * noise[:, at - 1]
        names = ("reward", "kl", "entropy", "grad_norm", "completion_length", "a", "b", "c")
        trace = log(**{n: np.exp(0.2 * each) for n, each in zip(names, noise, strict=True)})
        assert main_event(trace) is None
        assert near or "this passes" not in said(trace)


def test_an_outage_is_no_smoothing():
    assert likeness(judge_out(rows=220, begin=130, end=150).steps["reward"]) < 0.4


def test_all_outages_are_told_the_longest_with_its_edges_and_what_moves_with_it():
    text = event_of(gone())
    assert text.startswith("In steps 143 to 161 your reward is gone: about 0.0")
    for told in (" at step 143, ", " at step 162)", "gone in steps 268 to 271, too"):
        assert told in text
    assert "`Time_s` rises" in text and "equal rewards rises" in text
    assert text.endswith("`Seq Length` does not change.")


def test_a_reward_that_falls_by_half_or_that_stays_away_is_no_outage():
    for trace in (gone(left=0.25), gone(out=((250, ROWS),)), gone(out=((40, 300),))):
        assert "is gone" not in event_of(trace)


def test_the_trend_and_the_levels_leave_out_the_steps_of_all_outages():
    trace = gone()
    text = trend_told(trace).text
    assert "rises by +0.1" in text and "Left out: steps 143 to 161 and 268 to 271" in text
    told = remarks_of(trace)
    assert told[0].startswith("The reward is gone in steps 143 to 161 and 268 to 271;")
    assert "at most (step" not in told[1] and "around step" not in told[1]
    assert not any("lacks steps" in one for one in told)


def test_noise_that_is_0_now_and_then_has_no_outages():
    for trials, share in ((4, 0.5), (8, 0.3), (32, 0.1)):
        for _ in range(20):
            assert "is gone" not in said(log(reward=RNG.binomial(trials, share, ROWS) / trials))


def test_a_row_at_the_edge_of_a_low_stretch_is_not_told_as_the_highest():
    for edge in (0.2, 0.3, 0.38):
        for _ in range(10):
            values = line(0.25, 0.5, ROWS, 0.05)
            values[142:161], values[161] = 0.01 * RNG.uniform(0.5, 1.5, 19), edge
            assert "at most (step 16" not in said(log(reward=around(0.5, ROWS), novel=values))
