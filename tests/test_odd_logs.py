"""Logs of numbers that are none, that never change or that no sum can hold: no warning of a library
reaches the console, and no hypothesis trips over them."""

import json
import math
import random
import warnings

import pytest

from flatline.diagnosis.report import diagnose
from flatline.trace import Trace
from flatline.trace.importers import open_log
from tests.traces import healthy_rows, run_facts

NAMES = (
    *("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "loss", "grad_norm"),
    *("learning_rate", "completions/mean_length", "completions/clipped_ratio", "eval_reward"),
    *("clip_ratio/region_mean", "importance_sampling_ratio/mean", "rewards/format/mean"),
    *("sampling/sampling_logp_difference/mean", "num_tokens", "epoch", "step_time"),
)
VALUES = {
    "nan": lambda step: math.nan,
    "inf": lambda step: math.inf,
    "-inf": lambda step: -math.inf,
    "constant": lambda step: 0.5,
    "zero": lambda step: 0.0,
    "below zero": lambda step: -1.0,
    "huge": lambda step: 1e308,
    "huge both ways": lambda step: -1e308 if step % 2 else 1e308,
    "smallest": lambda step: 5e-324,
    "a bit of all": lambda step: (math.nan, math.inf, 0.5, -math.inf)[step % 4],
    "one number": lambda step: math.nan if step else 1.0,
}


def looked_at(trace):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = diagnose(trace)
        json.dumps(report.to_json())
    tripped = [one.text for one in report.findings if "defect of flatline" in one.text]
    assert not tripped, tripped


@pytest.mark.parametrize("rows", [1, 2, 3, 9, 40])
@pytest.mark.parametrize("kind", VALUES)
def test_a_log_of_odd_numbers_is_diagnosed_without_a_warning(tmp_path, kind, rows):
    for names in (NAMES, ("reward",), ("kl", "reward"), ("frac_reward_zero_std",)):
        entries = [{"step": s, **{name: VALUES[kind](s) for name in names}} for s in range(rows)]
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, entries)))
        looked_at(open_log(tmp_path / "log.jsonl"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", VALUES)
def test_one_odd_column_of_a_sound_log_is_no_reason_for_a_warning(tmp_path, kind, name):
    draw = random.Random(0)
    entries = [{"step": s, **{one: draw.random() for one in NAMES}} for s in range(24)]
    for step, entry in enumerate(entries):
        entry[name] = VALUES[kind](step)
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, entries)))
    looked_at(open_log(tmp_path / "log.jsonl"))


@pytest.mark.parametrize("column", ["reward", "advantage"])
@pytest.mark.parametrize("kind", VALUES)
def test_a_recorded_run_of_odd_numbers_is_diagnosed_without_a_warning(kind, column):
    rows = healthy_rows(steps=6)
    for at, row in enumerate(rows["rollouts"]):
        row[column] = VALUES[kind](at)
    for row in rows["steps"]:
        row["reward"] = VALUES[kind](row["step"])
    looked_at(Trace.from_rows(run=run_facts(), **rows))
