"""What a fifth round of logs showed: each mended in the general mechanism, on made numbers and on
the log that showed it (docs/real-logs/fifth)."""

import json
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.errors import TraceError
from flatline.hypotheses.base import Level
from flatline.hypotheses.h38_reward_hacking import RewardHacking
from flatline.hypotheses.h47_seed_noise import SeedNoise
from flatline.hypotheses.held_out import course_of, is_score, scores_of
from flatline.hypotheses.trend import trend_of
from flatline.remarks import SHOWN, remarks_of
from flatline.trace import Trace
from flatline.trace.importers import open_log

LOGS = Path(__file__).parents[1] / "docs" / "real-logs" / "fifth"
OURS = {
    *("reward", "kl", "entropy", "grad_norm", "learning_rate", "completion_length"),
    *("zero_std_share", "truncated_share", "clip_share", "heldout_reward", "ratio_max"),
}
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_noise():
    """Whatever ran before, and in whichever process."""
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def log(source="import:trl", **columns):
    """A log; `eval__score` stands for `eval/score`."""
    named = {name.replace("__", "/"): np.asarray(values) for name, values in columns.items()}
    rows = len(next(iter(named.values())))
    listed = []
    for at in range(rows):
        row = {n: float(v[at]) for n, v in named.items() if v[at] is not None}
        listed.append({"step": at + 1, **{n: row[n] for n in OURS & row.keys()}, "metrics": row})
    unknown = sorted(name for name in named if name not in OURS and "/" not in name)
    run = {"source": source, "unrecognised": unknown, "settings": {}}
    return Trace.from_rows(run=run, steps=listed)


def around(level, rows, by=0.02):
    return level + by * RNG.normal(size=rows)


def shown(name):
    report = diagnose(open_log(LOGS / name))
    notes = [one.text for one in report.findings if one.level is Level.NOTE]
    told = [report.summary, *notes, *report.caveats, *report.remarks[:SHOWN]]
    return report, " ".join(told)


# A reward that rises early and then stays.


def early_rise(rows=300):
    level = np.minimum(0.55 + 0.42 * np.linspace(0, 4.5, rows), 0.97)
    noise = RNG.normal(size=rows)
    alike = noise.copy()
    for at in range(1, rows):
        alike[at] = 0.15 * alike[at - 1] + noise[at]
    return level + 0.012 * alike


def test_a_reward_that_rises_early_and_stays_is_said_to_rise():
    trace = log(reward=early_rise())
    trend = trend_of(trace)
    assert trend.rises and trend.flat is False
    assert "too few" not in trend.text
    assert SeedNoise().sign(trace).level is Level.OK


def test_no_steps_more_are_asked_for_where_the_reward_stands_at_its_ceiling():
    report, told = shown("02_wandb_export.csv")
    assert report.trend.rises and "would settle it" not in told and "too few" not in told
    assert "used up" in report.answer.headline
    assert "0.97 of 1" in told and "harder" in told


def test_equal_groups_at_a_low_reward_are_not_called_solved():
    _, told = shown("05_trl_console.txt")
    assert "are solved" not in told and "used up" not in told


def test_equal_groups_of_a_reward_whose_best_is_not_1_are_not_called_solved():
    rows = 60
    trace = log(
        reward=np.minimum(around(0.95, rows), 1.0),
        reward_std=around(1.0, rows),
        zero_std_share=around(0.8, rows),
    )
    assert "solved" not in diagnose(trace).summary


# A reward that loses a little of what it gained.


def test_a_reward_that_ends_far_above_its_start_is_not_said_to_fall():
    levels = np.concatenate([around(0.9, 80), around(1.7, 90), around(1.6, 30)])
    trend = trend_of(log(reward=levels))
    assert trend.rises and not trend.falls
    assert "falls a little" in trend.text


def test_a_reward_that_loses_most_of_its_gain_falls():
    levels = np.concatenate([around(0.9, 80), around(1.7, 90), around(1.0, 30)])
    assert trend_of(log(reward=levels)).falls


def test_a_main_part_that_falls_while_the_reward_rises_is_suspected():
    report, _ = shown("06_wandb_chart_export.csv")
    assert report.causes[0].hypothesis == "H38"
    assert "games the reward" in report.answer.headline
    assert "citation_count" in report.causes[0].text


def test_a_small_part_that_falls_is_noted_and_no_more():
    rows = 90
    main, small = np.linspace(0.6, 1.2, rows), np.linspace(0.14, 0.0, rows)
    parts = {"rewards__main": around(main, rows), "rewards__brief": around(small, rows, 0.003)}
    trace = log(reward=sum(parts.values()), **parts)
    assert RewardHacking().sign(trace).level is Level.NOTE


# Evaluations.


def test_a_length_of_solved_problems_is_no_score():
    assert is_score("eval/math_correct_rate", np.array([0.3, 0.5]))
    assert is_score("val-core/openai/gsm8k/acc/mean@1", np.array([0.3, 0.5]))
    for name in ("val/sequence_lengths_solved", "val/sequence_lengths_unsolved", "eval/num_solved"):
        assert not is_score(name, np.array([666.0, 535.0]))
    assert not is_score("eval/solved", np.array([666.0, 535.0])), "no share is 666"


def test_an_evaluation_that_falls_after_its_best_is_seen():
    report, told = shown("10_open_instruct.jsonl")
    assert report.causes[0].hypothesis == "H38"
    assert "sequence_lengths_solved" not in report.causes[0].text
    assert "0.595 at its best (step 75)" in report.causes[0].text
    assert "rises until then and falls since" in told
    assert "val/sequence_lengths_solved" not in scores_of(open_log(LOGS / "10_open_instruct.jsonl"))


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_the_best_of_noisy_evaluations_is_no_best(alike):
    said = 0
    for seed in range(300):
        noise = np.random.default_rng(seed).normal(size=14)
        for at in range(1, 14):
            noise[at] += alike * noise[at - 1]
        course = course_of(0.5 + 0.05 * noise, np.arange(14))
        said += course.rises or course.falls
    assert said <= 6, "2 %"


def test_an_evaluation_that_rises_early_and_then_stays_is_said_to_rise():
    rows, every = 420, 30
    score = np.full(rows, np.nan)
    level = [0.41, 0.58, 0.61, *[0.66] * 11]
    score[::every] = np.array(level) + np.tile([0.01, -0.01], 7)
    trace = log(reward=around(0.6, rows), eval__pass1=score)
    told = " ".join(remarks_of(trace))
    assert "it rises, most of it early" in told


# Numbers that are none.


def test_a_run_whose_gradient_stays_nan_says_so_first_and_what_came_before():
    report, told = shown("11_metrics.jsonl")
    assert report.answer.headline.startswith("Your training breaks at step 49")
    proof = report.causes[0].text
    assert "`ratio_max` grew from 1.97 to" in proof and "`clip_frac` grew from" in proof
    assert "epsilon None" not in told
    assert "`pass_any` is at its ceiling" not in told
    assert "`max_grad_norm` is 1 in all 64 rows" in told
    assert "above 1, at which it is clipped, in 49 of 49 rows" in told


def test_single_steps_without_a_gradient_are_no_end_of_the_training():
    norm = around(0.5, 60)
    norm[[20, 31]] = np.inf
    report = diagnose(log(reward=around(0.5, 60), grad_norm=norm))
    assert not any(one.hypothesis == "H26" for one in report.alarms)


def test_a_loss_that_stays_nan_is_a_fault_where_no_gradient_is_logged():
    loss = around(0.5, 60)
    loss[50:] = np.nan
    rows = [{"step": at + 1, "loss": float(value)} for at, value in enumerate(loss)]
    trace = Trace.from_rows(run={"source": "import:csv", "settings": {}}, steps=rows)
    assert "breaks at step 51: from there on its loss" in diagnose(trace).answer.headline


# A policy that stops exploring, tools that fail, a sampler that drifts off.


def test_an_entropy_collapse_below_the_ceiling_is_suspected_though_the_reward_once_rose():
    report, _ = shown("05_trl_console.txt")
    assert report.causes[0].hypothesis == "H30"
    assert "stands at 0.63 of 1" in report.causes[0].text


def test_a_sure_policy_whose_prompts_are_solved_is_not_suspected():
    rows = 120
    rise = np.minimum(np.linspace(0.5, 2.0, rows), 0.96)
    trace = log(
        reward=np.minimum(around(rise, rows), 1.0),
        entropy=around(np.linspace(0.8, 0.02, rows), rows, 0.005),
        zero_std_share=np.clip(around(np.linspace(0.1, 0.9, rows), rows), 0, 1),
    )
    assert not any(one.hypothesis == "H30" for one in diagnose(trace).alarms)


def test_tools_that_begin_to_fail_after_a_resume_are_named_with_what_the_resume_changed():
    report, told = shown("12_trl_log_history.jsonl")
    assert report.causes[0].hypothesis == "H41"
    assert "since step 121" in report.causes[0].text
    assert "a reward of 0.844 at first and of 0.603 again" in told
    assert "begin with a learning rate of 0 (at first: 7.4e-07)" in told
    assert "begins anew at step 121 (from 0)" in told


def test_failures_of_tools_are_no_cause_while_the_reward_rises():
    rows = 90
    failing = around(np.linspace(0.02, 0.4, rows), rows, 0.01).clip(0, 1)
    rising = around(np.linspace(0.2, 0.8, rows), rows)
    trace = log(reward=rising, tools__failure_frequency=failing)
    assert not any(one.hypothesis == "H41" for one in diagnose(trace).alarms)


def test_a_mismatch_that_grows_in_a_printed_log_of_two_processes_is_suspected():
    report, told = shown("13_prime_rl.log")
    assert report.causes[0].hypothesis == "H63"
    assert "`Async Level` jumps from 1 to 2 at step 61" in told
    assert "`Async Level` is next to its ceiling" not in told


# Printed rows.


def saved(folder, *lines):
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return open_log(path)


def test_rows_of_two_processes_are_joined_by_their_step(tmp_path):
    trace = saved(
        tmp_path,
        "09:12:31 [trainer] INFO Starting in World(world_size=8, rank=0, local_rank=0)",
        *(
            line
            for at in range(3)
            for line in (
                f"09:13:24 [rollout] Step {at} | Time: 44.6s | Reward: 0.{at}5 | Async Level: 1",
                f"09:13:25 [trainer] Step {at} | Time: 43.9s | Loss: -1.5e-3 | Grad. Norm: 0.1 | "
                "LR: 1.00e-06 | MFU: 30.4% | Peak Mem.: 68.5/79.1 GiB (86.5%)",
            )
        ),
    )
    assert trace.steps["step"].tolist() == [0, 1, 2]
    assert trace.steps["reward"].tolist() == [0.05, 0.15, 0.25]
    assert trace.steps["loss"].tolist() == [-1.5e-3] * 3
    assert trace.metric("rollout/Time_s").tolist() == [44.6] * 3
    assert trace.metric("MFU")[0] == pytest.approx(0.304)
    assert not trace.run["notes"] and not trace.warnings


@pytest.mark.parametrize(
    "step",
    [
        "[  {}0/1000]",
        "iter {}0:",
        "Step {}0 |",
        "step={}0",
        "it {}0/1000 |",
        "ts=2025-1T9Z step={}0",
    ],
)
def test_names_and_numbers_with_a_sign_of_equality_are_rows(tmp_path, step):
    lines = [f"{step.format(at)} loss=+0.01 reward=0.{at} kl=2e-07 t=215.2s" for at in (1, 2, 3)]
    trace = saved(tmp_path, "loaded a model", *lines, "saved checkpoint to ckpt/step_50")
    assert trace.steps["step"].tolist() == [10, 20, 30]
    assert trace.steps["reward"].tolist() == [0.1, 0.2, 0.3]
    assert trace.metric("t").tolist() == [215.2] * 3


def test_what_a_model_writes_is_no_row(tmp_path):
    with pytest.raises(TraceError):
        saved(
            tmp_path,
            "Step 1: x = 3, y = 4, z = 5 | so a: 1 | b: 2 | c: 3",
            "[1/3] a=1 b=2 c=3",
            "level=info step=2 msg=done",
        )


def test_a_rate_of_1e_9_is_read_off_the_output_of_a_loop_of_ones_own():
    report, told = shown("14_own_loop_stdout.txt")
    assert report.causes[0].hypothesis == "H24"
    assert "`r_xmlcount` is 0 in all 22 rows" in told


# One bad update.


def test_one_bad_update_is_told_as_one_event_with_what_came_a_step_before():
    _, told = shown("09_trl_trainer_state.json")
    event = next(text for text in told.split(". ") if "At step 141" in text)
    assert "the gradient norm rises from 0.153 to 38.6; from step 142 on the reward falls" in told
    assert "the KL rises from 0.0756 to 2.41" in told and "the entropy rises from" in told
    assert "this passes: the reward is back by step" in told and "the KL not wholly" in told, event


def test_what_lasts_is_no_event_that_passes():
    jump = np.repeat([0.0, 1.0], 50)
    trace = log(
        reward=around(0.5 + 0.3 * jump, 100),
        kl=around(0.1 + jump, 100, 0.01),
        entropy=around(0.4 + jump, 100, 0.01),
    )
    assert "this passes" not in " ".join(remarks_of(trace))


def test_noise_of_many_columns_makes_no_event():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        names = ("reward", "kl", "entropy", "grad_norm", "completion_length", "a", "b", "c")
        columns = {name: np.exp(0.3 * rng.standard_t(4, size=200)) for name in names}
        assert "this passes" not in " ".join(remarks_of(log(**columns)))


# What chance makes of digits, and what is no number.


def test_long_lengths_are_not_multiples_of_a_number_by_chance():
    lengths = np.exp(RNG.uniform(np.log(1500), np.log(7000), size=110))
    told = " ".join(remarks_of(log(reward=around(0.5, 110), completion_length=lengths)))
    assert "multiples of" not in told


def test_long_lengths_that_are_means_of_64_are_still_read_as_such():
    lengths = np.round(RNG.uniform(1500, 7000, size=110) * 64) / 64
    told = " ".join(remarks_of(log(reward=around(0.5, 110), completion_length=lengths)))
    assert "mean of 64 completions" in told


def test_a_file_of_texts_and_truths_is_no_log(tmp_path):
    path = tmp_path / "notes.json"
    rows = [{"sees": "a text", "must": at < 3} for at in range(12)]
    path.write_text(json.dumps({"a log": rows}))
    with pytest.raises(TraceError, match="holds no row with a step and a number"):
        open_log(path)


def test_what_a_trainer_logs_throughout_comes_behind_what_moves():
    rows = 150
    rising = around(np.linspace(0.3, 0.8, rows), rows)
    constant = {f"actor__setting_{at}": np.full(rows, float(at)) for at in range(8)}
    told = remarks_of(log(reward=rising, entropy=around(0.4 - 0.2 * rising, rows), **constant))
    moved = next(at for at, text in enumerate(told) if "entropy" in text)
    assert moved < next(at for at, text in enumerate(told) if "actor/setting_1" in text)


def test_columns_that_repeat_the_reward_are_told_in_one_sentence():
    rising = around(np.linspace(0.3, 0.8, 60), 60)
    trace = log(reward=rising, one=rising, two=rising, ten=10 * rising)
    told = [text for text in remarks_of(trace) if "The reward is the same as" in text]
    assert len(told) == 1 and "`one` and `two`, and 0.1 times `ten` in all 60 rows" in told[0]


def test_steps_that_a_log_lacks_and_those_that_were_planned_are_told():
    assert "The log lacks steps 88 to 99." in shown("13_prime_rl.log")[1]
    assert "220 of 1000 planned steps were made (22%)." in shown("14_own_loop_stdout.txt")[1]


def test_an_evaluation_is_told_once():
    score = np.full(160, np.nan)
    score[9::10] = np.linspace(0.3, 0.8, 16)
    told = remarks_of(log(reward=around(0.5, 160), eval__acc=score))
    assert sum("`eval/acc` is 0" in text for text in told) == 1
