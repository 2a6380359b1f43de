"""The time of a diagnosis grows with what is diagnosed, not with its square: a run's files are read
in few pieces however many steps it has, and four times the rows or columns are no sixteen times the
work. `benchmarks/diagnose_speed.py` measures the seconds."""

import json
import time

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.h15_padding import Padding
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.chunked_table import Pieces
from tests.traces import run_facts

GROUPS, LENGTH = 4, 6


def padded_run(steps, *, agree_from):
    """Prompts of different lengths; up to a step, sampler and trainer hold different weights."""
    rng = np.random.default_rng(0)
    rollouts, tokens = [], []
    for step in range(1, steps + 1):
        for row in range(2 * GROUPS):
            prompt = 4 + (row // 2 if step > 1 else 0)
            sampler = -rng.exponential(0.5, LENGTH).astype(np.float32)
            off = 1e-7 if step >= agree_from else 0.01
            place = {"step": step, "rollout": row}
            rollouts.append(
                place
                | {"group": row // 2, "reward": float(row % 2), "advantage": row % 2 - 0.5}
                | {"prompt_tokens": prompt, "completion_tokens": LENGTH}
            )
            tokens.append(
                place
                | {"prompt_ids": np.arange(prompt), "ids": np.arange(LENGTH)}
                | {"author": np.full(LENGTH, Author.MODEL), "trained": np.ones(LENGTH, np.uint8)}
                | {"attended": np.ones(LENGTH, np.uint8), "sampler": sampler}
                | {"trainer": sampler + np.float32(off)}
            )
    return Trace.from_rows(run=run_facts(), rollouts=rollouts, tokens=tokens)


def reads(monkeypatch, trace, look):
    """How often a column of tokens is read."""
    seen, gather = [], Pieces.gather

    def counted(self, name, rows):
        seen.append(name)
        return gather(self, name, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "gather", counted)
        look(trace)
    return len(seen)


def test_more_steps_are_hardly_read_more_often(monkeypatch):
    few, many = (
        reads(monkeypatch, padded_run(steps, agree_from=10**6), diagnose) for steps in (8, 64)
    )
    assert many < 2 * few, "eight times as many steps"


@pytest.mark.parametrize("step", (2, 3, 9, 30))
def test_the_first_padded_step_with_the_weights_of_the_sampler_is_found_wherever_it_is(step):
    found = Padding().sign(padded_run(31, agree_from=step))
    assert found.measured.n == GROUPS - 1 and found.measured.value < 1e-6


def long_log(path, rows):
    rng = np.random.default_rng(0)
    columns = {"reward": rng.beta(4, 6, rows), "loss": rng.normal(0, 0.01, rows)}
    found = (
        {"step": at + 1, **{name: values[at] for name, values in columns.items()}}
        for at in range(rows)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def wide_log(path, columns):
    rng = np.random.default_rng(0)
    names = [f"norm/model.layers.{at // 7}.proj{at % 7}" for at in range(columns)]
    with path.open("w") as file:
        for step in range(1, 21):
            row = {"step": step, "reward": rng.beta(4, 6)}
            file.write(json.dumps(row | dict(zip(names, rng.random(columns), strict=True))) + "\n")


def seconds(path):
    """Of this process."""
    start = time.process_time()
    diagnose(path)
    return time.process_time() - start


@pytest.mark.parametrize(("make", "size"), [(long_log, 8_000), (wide_log, 2_500)])
def test_four_times_the_log_is_no_sixteen_times_the_work(tmp_path, make, size):
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    make(small, size)
    make(large, 4 * size)
    tries = range(2)  # others on the machine may make one of them longer
    assert any(seconds(large) < 8 * seconds(small) for _ in tries)
