"""What a sixth round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/sixth)."""

from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.outcome import Outcome
from flatline.diagnosis.report import diagnose
from flatline.diagnosis.several import diagnose_several
from flatline.errors import TraceError
from flatline.hypotheses.base import Level
from flatline.hypotheses.course import alike, goes_on
from flatline.hypotheses.h04_context_truncation import ContextTruncation
from flatline.hypotheses.h24_learning_rate import LearningRate
from flatline.hypotheses.h63_growing_mismatch import GrowingMismatch
from flatline.hypotheses.held_out import course_of, is_score
from flatline.hypotheses.trend import trend_of
from flatline.remarks import SHOWN, remarks_of
from flatline.remarks.main_event import main_event
from flatline.trace import Trace
from flatline.trace.importers import open_log
from flatline.trace.importers.several import logs_in
from tests.test_fifth_logs import around, log, same_noise  # noqa: F401

LOGS = Path(__file__).parents[1] / "docs" / "real-logs"
SIXTH = LOGS / "sixth"


def shown(path):
    report = diagnose(open_log(path))
    notes = [one.text for one in report.findings if one.level is Level.NOTE]
    return report, " ".join([report.summary, *notes, *report.caveats, *report.remarks[:SHOWN]])


def saved(folder, *lines, name="train.log"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# What happened comes first.


def outage(rows=120, begin=60, end=75, **more):
    inside = (np.arange(rows) >= begin) & (np.arange(rows) < end)
    columns = {
        "reward": around(np.where(inside, 0.2, 0.5), rows),
        "judge_ok": around(np.where(inside, 0.4, 0.995), rows, 0.004).clip(0, 1),
        "critic": around(np.where(inside, 0.06, 0.02), rows, 0.001),
        "kl": around(np.linspace(0.0, 0.02, rows), rows, 0.0003).clip(0),
    }
    return log(**(columns | more))


def test_an_event_that_passes_is_the_first_sentence_and_no_cause_is_claimed():
    report = diagnose(outage())
    head = report.answer.headline
    assert head.startswith("In steps 61 to 75 your reward falls from 0.5")
    assert "then comes back; in the same steps" in head and "`judge_ok` falls" in head
    assert report.outcome is not Outcome.ALARM
    assert head.endswith(("This log does not show why.", "tested explains it."))


def test_an_outcome_that_falls_by_what_a_share_lacks_is_told_so():
    assert "divided by `judge_ok`, your reward stays at 0.5" in main_event(outage()).text


def test_what_an_event_leaves_behind_is_told_and_what_comes_back_is_not():
    kl = np.linspace(0.0, 0.02, 120) + 0.03 * (np.arange(120) >= 62)
    stays = main_event(outage(kl=around(kl, 120, 0.0003).clip(0)))
    assert stays.after.startswith("The KL is 0.00") and stays.after.endswith("since.")
    assert main_event(outage()).after == ""


def test_a_log_without_a_reward_is_told_by_what_stands_for_success():
    report, _ = shown(LOGS / "calculator.log")
    assert report.answer.headline.startswith("In steps 26 to 45 `env.solved` falls from 0.719")
    assert "`tool.error_rate` rises from 0.0313 to 0.804" in report.answer.headline


@pytest.mark.parametrize("like", [0.0, 0.6])
def test_noise_of_many_columns_is_no_event(like):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        noise = rng.standard_t(4, size=(8, 150))
        for at in range(1, 150):
            noise[:, at] += like * noise[:, at - 1]
        names = ("reward", "kl", "entropy", "grad_norm", "completion_length", "a", "b", "c")
        columns = {n: np.exp(0.2 * each) for n, each in zip(names, noise, strict=True)}
        assert main_event(log(**columns)) is None


def test_a_reward_that_jumps_where_a_setting_was_changed_shows_no_learning():
    report, told = shown(SIXTH / "metrics.jsonl")
    assert report.outcome is Outcome.NOT_ENOUGH
    head = report.answer.headline
    assert "At step 161 your learning rate goes from 5e-07 to 2e-06" in head
    assert "`n_seq` goes from 512 to 256" in head and "your reward goes from 0.476" in head
    assert "log names no step" not in told


def test_a_setting_that_moves_nothing_for_certain_is_told_as_that():
    report, _ = shown(LOGS / "rate-bump.csv")
    head = report.answer.headline
    assert head.startswith("At steps 21 and 31 your learning rate goes from 0.0001 to 0.001")
    assert "which may be noise" in head and not main_event(open_log(LOGS / "rate-bump.csv")).certain


def test_a_reward_that_rises_through_a_change_of_the_rate_still_rises():
    rows = 120
    rate = np.where(np.arange(rows) < 60, 1e-5, 5e-6)
    report = diagnose(log(reward=around(np.linspace(0.3, 0.7, rows), rows), learning_rate=rate))
    assert report.outcome is Outcome.HEALTHY


def test_passes_over_the_data_are_no_setting_that_somebody_changed():
    rows = 200
    falling = np.linspace(0.3, 0.05, rows)
    trace = log(
        reward=around(0.5, rows),
        training__epoch=(np.arange(rows) >= 120).astype(float),
        clip_share=around(falling, rows, 0.005).clip(0, 1),
    )
    assert not any("epoch" in text and "clipped" in text for text in remarks_of(trace))


def test_steps_made_twice_say_what_else_differs():
    _, told = shown(SIXTH / "metrics.jsonl")
    assert "had a reward of 0.488 at first and of 0.582 again" in told
    assert (
        "`n_seq` 512 and 256, `H` 0.672 and 0.431" in told and "`dev_acc` 0.418 and 0.418" in told
    )


# Causes in logs.


def test_completions_that_are_cut_ever_more_are_suspected_where_the_reward_comes_back():
    report, told = shown(SIXTH / "slurm-48213.out")
    assert report.causes[0].hypothesis == "H04"
    assert "those that ended earn 0.43 early and 0.68 late: these get better" in told


def test_completions_that_are_cut_ever_more_are_no_cause_while_the_reward_rises():
    rows = 120
    cut = around(np.linspace(0.02, 0.5, rows), rows).clip(0, 1)
    rising = log(reward=around(np.linspace(0.3, 0.7, rows), rows), truncated_share=cut)
    assert ContextTruncation().sign(rising).level is Level.OK


def gaps(gap, reward):
    rows = zip(gap.tolist(), reward.tolist(), strict=True)
    steps = [{"step": at, "logprob_gap": a, "reward": b} for at, (a, b) in enumerate(rows, 1)]
    return Trace.from_rows(run={"source": "import:csv", "settings": {}}, steps=steps)


def test_a_gap_that_grows_unevenly_is_suspected_with_when_it_began():
    rows = 200
    wander = np.zeros(rows)
    for at in range(1, rows):
        wander[at] = 0.5 * wander[at - 1] + 0.06 * np.random.default_rng(at).normal()
    gap = 0.015 * np.exp(wander + np.maximum(np.arange(rows) - 100, 0) * 0.022)
    reward = np.where(np.arange(rows) < 160, 0.6, 0.4)
    found = GrowingMismatch().sign(gaps(gap, around(reward, rows)))
    assert found.level is Level.SUSPECT and "the reward fell later (step 161)" in found.text


def test_a_gap_that_was_smoothed_tells_no_growth():
    rows, noise = 200, np.random.default_rng(3).normal(size=200)
    smooth = np.zeros(rows)
    for at in range(1, rows):
        smooth[at] = 0.97 * smooth[at - 1] + 0.03 * noise[at]
    found = GrowingMismatch().sign(gaps(0.02 * np.exp(smooth), around(0.5, rows)))
    assert found.level is not Level.SUSPECT


def test_a_kl_that_is_there_from_the_first_row_and_never_grows_is_rounding():
    report, told = shown(SIXTH / "notebook_table.txt")
    assert report.answer.headline == "Suspected: Your policy does not move."
    assert "sampler gets these weights" in report.causes[0].fix and "does not grow" in told


def test_a_small_kl_that_begins_at_0_is_no_rounding():
    rows = 120
    kl = 5e-4 * (1 - np.exp(-np.arange(rows) / 6)) * np.exp(around(0, rows, 0.1))
    found = LearningRate().sign(log(reward=around(0.5, rows, 0.01), kl=kl))
    assert found.level is not Level.SUSPECT


def test_a_held_out_score_that_ends_below_its_start_is_a_reservation():
    report, told = shown(SIXTH / "history_9xk2f0qd.csv")
    assert (
        "one reservation: your training reward rises, and your held-out" in report.answer.headline
    )
    assert "rises most is `step_bonus`" in told and "One in twenty curves of noise" in told
    assert not report.alarms


@pytest.mark.parametrize("like", [0.0, 0.3])
def test_evaluations_of_noise_hardly_ever_end_below_their_start(like):
    said = 0
    for seed in range(300):
        noise = np.random.default_rng(seed).normal(size=13)
        for at in range(1, 13):
            noise[at] += like * noise[at - 1]
        said += course_of(0.5 + 0.05 * noise, np.arange(13)).leans
    assert said <= 15, "5 %"


# What is said of curves.


def test_a_rise_that_goes_on_is_not_said_to_stay():
    report, told = shown(SIXTH / "run-rloo_lr2e-7-tag-rollout_reward_mean.csv")
    assert report.outcome is Outcome.HEALTHY
    assert "not levelled off (the means of its sixths: 0.414, 0.419, 0.426" in told
    assert "stays there" not in told and "Since step" not in told
    assert "61,975 seconds" in told, "not the time of day"


def test_a_curve_that_has_levelled_off_does_not_go_on():
    level = around(np.minimum(np.linspace(0.2, 1.4, 200), 0.6), 200)
    assert not goes_on(level, level[120:])
    rising = around(np.linspace(0.2, 1.4, 200), 200)
    assert goes_on(rising, rising[120:])


def test_an_outage_is_no_smoothing():
    assert alike(outage(rows=220, begin=130, end=150).steps["reward"]) < 0.4
    assert trend_of(open_log(SIXTH / "chat_ppo_04.log")).text.startswith("The training reward goes")


def test_a_part_that_rises_and_falls_again_is_not_said_to_stay():
    assert "`correctness` (0.476" not in shown(SIXTH / "history_9xk2f0qd.csv")[1]


def test_evaluations_that_keep_close_together_are_said_to_since_when():
    _, told = shown(SIXTH / "trainer_state.json")
    assert "stays between 0.597 and 0.609 since step 250" in told


def test_a_rate_that_was_warmed_up_is_at_no_ceiling():
    rows = 150
    rate = np.minimum(np.arange(1, rows + 1) / 6, 1) * 9e-6
    trace = log(reward=around(0.5, rows), critic_lr=rate)
    assert "`critic_lr` is at its ceiling" not in " ".join(remarks_of(trace))


def test_a_set_of_problems_is_a_score_by_its_name():
    assert is_score("eval/aime24", np.array([0.2, 0.4]))
    assert not is_score("eval/aime24-truncated_ratio", np.array([0.2, 0.4]))
    assert not is_score("eval/aime24-response_len/mean", np.array([5000.0]))
    assert not is_score("eval/mathematicians", np.array([700.0]))


# Reading.


def test_rows_that_a_console_broke_are_whole_again(tmp_path):
    row = "{'loss': 0.01, 'grad_norm': 0.2, 'reward': 0.%d1, 'kl': 0.003, 'epoch': 0.0%d}"
    lines = []
    for at in range(1, 7):
        text = row % (at, at)
        lines += [text[:40], text[40:]] if at > 3 else [text]
        lines.append(f" {at}%|█| {at}/6 [00:0{at}<00:10, 2.00s/it]")
    trace = open_log(saved(tmp_path, *lines))
    assert trace.steps["reward"].tolist() == [0.11, 0.21, 0.31, 0.41, 0.51, 0.61]
    assert trace.settings["max_steps"] == 6


def test_what_only_looks_like_a_broken_row_hides_no_row_behind_it(tmp_path):
    rows = [f"[ {at}/9] loss=0.1 reward=0.{at} kl=0.01" for at in range(1, 6)]
    trace = open_log(saved(tmp_path, "config {'lr': 1e-6,", *rows))
    assert trace.steps["step"].tolist() == [1, 2, 3, 4, 5]


def test_an_evaluation_between_rows_without_a_step_is_of_the_step_before_it():
    trace = open_log(SIXTH / "slurm-48213.out")
    evaluated = np.isfinite(trace.steps["heldout_reward"])
    assert trace.steps["step"][evaluated].tolist() == [40, 80, 120, 160]
    assert len(trace.steps["step"]) == 160


def test_a_table_under_a_header_with_a_logger_before_it_is_read(tmp_path):
    lines = ["10:00 | INFO | run:1 - starting", "10:01 | INFO | t:1 -  step  score  kl  len  win"]
    lines += [f"10:02 | INFO | t:2 -  {at}  0.{at}  0.01  40{at}  -" for at in range(1, 5)]
    trace = open_log(saved(tmp_path, *lines, "10:03 | WARNING | judge: 140 of 256 missing"))
    assert trace.steps["reward"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert trace.steps["completion_length"].tolist() == [401, 402, 403, 404]


def test_two_processes_without_names_print_no_row_twice():
    trace = open_log(SIXTH / "orchestrator_and_trainer.log")
    assert not any("more than once" in note for note in trace.run["notes"])
    assert np.isfinite(trace.metric("Time_s (beside Loss)")).sum() == 120
    assert np.isfinite(trace.steps["heldout_reward"]).sum() == 9
    assert trace.steps["zero_std_share"][0] == pytest.approx(176 / 512)


def test_a_chart_of_two_runs_is_two_runs_and_neither_is_called_better():
    path = str(SIXTH / "chart_mean_reward.csv")
    with pytest.raises(TraceError, match="FILE#RUN"):
        open_log(path)
    runs = logs_in(path)
    assert [run.rpartition("#")[2] for run in runs] == ["rloo-3b-code-s1", "rloo-3b-code-s2"]
    differs = " ".join(diagnose_several(runs).differs)
    assert "so neither is certainly better" in differs
    assert "The last 88 steps are in" in differs and "with nothing to compare" in differs


def test_two_logs_of_which_one_is_better_are_told_apart(tmp_path):
    paths = []
    for name, level in (("a", 0.5), ("b", 0.6)):
        rows = [f"{at},{value}" for at, value in enumerate(around(level, 100))]
        paths.append(str(saved(tmp_path, "step,reward", *rows, name=f"{name}.csv")))
    told = next(text for text in diagnose_several(paths).differs if "minus that of" in text)
    assert "neither" not in told
