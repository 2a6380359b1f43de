"""H14: ended completions are taken for cut ones."""

from types import SimpleNamespace

import numpy as np
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h14_end_of_sequence import EndOfSequence
from flatline.trace import Trace

H14 = EndOfSequence()


def changed(edit, **settings):
    rows = healthy_rows(steps=3)
    for row in rows["rollouts"]:
        edit(row)
    return Trace.from_rows(run=run_facts(**settings), **rows)


def test_ended_completions_without_a_trained_token_are_a_fault_that_nothing_explains_away():
    finding = H14.sign(changed(lambda row: row.update(finish="eos", trained_tokens=0)))
    assert finding.level is Level.FAULT and finding.proven


def of_lengths(lengths, *, finish="length", trained=7, **settings):
    rng = np.random.default_rng(0)

    def edit(row):
        row |= {"finish": finish, "turns": 1, "completion_tokens": int(rng.choice(lengths))}
        row["trained_tokens"] = trained

    return changed(edit, **{"max_completion_length": 256, **settings})


def going_on(*, past, turn_end=7):
    """A probe of cut completions of one turn, of which some hold the end of a turn."""
    rows = healthy_rows(steps=1)
    for at, (rollout, row) in enumerate(zip(rows["rollouts"], rows["tokens"], strict=True)):
        rollout |= {"finish": "length", "turns": 1}
        row["ids"] = 100 + np.arange(len(row["ids"]))
        row["ids"][2] = 7 if past(at) else 102
    trace = Trace.from_rows(run=run_facts(), **rows)
    fit = SimpleNamespace(turn_end=turn_end)
    return H14.probe(subject(trace=trace, tokenizer_fit=lambda: fit))


def test_completions_that_go_on_behind_the_end_of_the_turn_are_a_fault():
    finding = going_on(past=lambda at: at % 8)
    assert finding.level is Level.FAULT and finding.proven


test_levels_of_the_sign = levels_of(H14.sign, {
    "cut at many lengths below the limit means that the end is not recognised": ("suspect",
        lambda: of_lengths(range(20, 120))),
    "cut at the limit or at one length is really cut": ("unknown", lambda: of_lengths([256])),
    "cut at the limit or at one length is really cut (2)": ("unknown", lambda: of_lengths([80])),
    "what a stop string ended is fine unless the loss leaves it out": ("ok",
        lambda: of_lengths(range(20, 120), finish="stop")),
    "what a stop string ended is fine unless the loss leaves it out (2)": ("suspect",
        lambda: of_lengths(range(20, 120), finish="stop", trained=0)),
    "what a stop string ended is fine unless the loss leaves it out (3)": ("unknown",
        lambda: of_lengths([80], finish="stop", trained=0)),
    "cut completions are left out on purpose": ("unknown",
        lambda: changed(lambda row: row.update(finish="turn_length", trained_tokens=0))),
    "a few": ("note",
        lambda: changed(lambda row: row.update(finish="eos",
            trained_tokens=0 if row["rollout"] == 3 else 7))),
})  # fmt: skip

test_levels = levels_of(None, {
    "completions that a limit cuts before the end of the turn are not": ("unknown",
        lambda: going_on(past=lambda at: at % 32 == 0)),
    "completions that a limit cuts before the end of the turn are not (2)": ("unknown",
        lambda: going_on(past=lambda at: True, turn_end=None)),
})  # fmt: skip
