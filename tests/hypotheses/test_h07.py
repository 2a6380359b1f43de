"""H07 multi-step."""

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import M, T, X, healthy_rows, run_facts

from flatline.hypotheses.h07_multi_step import MultiStep
from flatline.trace import Trace

H = MultiStep()
TURN = (M, M, X, T, T, X)
"""A turn of the model and what comes back."""


def trace_with(trained, turns=lambda at: 2 + at % 3, change=lambda row: {}):
    """`trained(turn, turns)` says which turns carry loss."""
    rows = healthy_rows(steps=2, prompts=2)
    tokens = []
    for at, row in enumerate(rows["tokens"]):
        n = turns(at)
        author = np.array((TURN * n)[: n * len(TURN) - 4], np.uint8)
        turn = np.arange(len(author)) // len(TURN)
        mask = np.array([trained(t, n) for t in turn]) & (author == M)
        sampler = np.full(len(author), -0.5, np.float32)
        row |= {"author": author, "ids": turn, "trained": mask.astype(np.uint8)}
        row |= {"attended": np.ones(len(author), np.uint8), "sampler": sampler}
        row |= {"trainer": sampler, "old": sampler, "reference": sampler}
        tokens.append({**row, **change(row)})
    return Trace.from_rows(run=run_facts(), **{**rows, "tokens": tokens})


test_levels_of_the_sign = levels_of(H.sign, {
    "turns after the first without loss": ("fault",
        lambda: trace_with(lambda turn, turns: turn < 1)),
    "turns lost from the end are left to h02": ("note",
        lambda: trace_with(lambda turn, turns: turn < turns - 1)),
    "healthy runs train every turn (2)": ("ok", lambda: trace_with(lambda turn, turns: True)),
    "rollouts left out of the loss as a whole do not count": ("ok",
        lambda: trace_with(lambda turn, turns: turns > 2)),
    "single turn runs are not concerned": ("ok",
        lambda: trace_with(lambda *_: True, turns=lambda at: 1)),
    "the cut may come later and one turn rollouts do not hide it": ("fault",
        lambda: trace_with(lambda turn, turns: turn < 2, turns=lambda at: 1 + at % 4)),
    "a gap that begins with the second turn": ("note",
        lambda: trace_with(lambda turn, turns: True,
            change=lambda row: {"trainer": row["sampler"] - np.where(row["ids"] > 0, 0.5,
            0).astype(np.float32)})),
})  # fmt: skip
