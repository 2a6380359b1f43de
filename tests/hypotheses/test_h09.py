"""H09: what stands before a trained token must be attended."""

import numpy as np
from tests.hypotheses.edited import batch, edited, effect, levels_of, rng_of, subject
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h09_loss_mask_as_attention import LossMaskAsAttention
from flatline.trace import Trace

H09 = LossMaskAsAttention()
NOTHING = effect("tool", [])


def hide(row):
    row["prompt_attended"] = np.zeros(6, np.uint8)
    row["attended"] = row["trained"]


def unlike(row):
    row["trainer"] = np.where(row["trained"], row["trainer"] - 4, row["trainer"])


def probed(change_T, *, tool=NOTHING, trace=None, **shape):
    return H09.probe(
        subject(
            trace=trace or healthy_trace(steps=1),
            batch=batch(**shape),
            context_effect={"prompt": effect("prompt", change_T), "tool": tool}.__getitem__,
        )
    )


def test_a_hidden_prompt_is_a_fault_and_shows_what_was_hidden():
    finding = H09.sign(edited(hide))
    assert finding.level is Level.FAULT
    assert finding.measured == 1.0


def test_a_single_hidden_token_is_noted():
    rows = healthy_rows(steps=1)
    rows["tokens"][0]["attended"][5] = 0
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.NOTE


def test_rollouts_that_no_pass_trained_on_hide_nothing():
    rows = healthy_rows(steps=2)
    for row in rows["tokens"][::2]:
        row["attended"] = row["prompt_attended"] = None
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


def mask_out(row):
    if row["rollout"] % 2:
        row["trained"] = row["attended"] = np.zeros(14, np.uint8)


def test_without_a_recorded_mask_the_log_probs_of_the_first_step_tell():
    rows = healthy_rows(steps=1)
    for row in rows["tokens"]:
        row.pop("attended"), row.pop("prompt_attended")
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK
    for row in rows["tokens"]:
        unlike(row)
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.SUSPECT


def test_the_probe_finds_a_trainer_that_does_not_notice_another_question():
    still = np.zeros(96)
    still[::12] = 3.0  # the token after an empty row of the mask may move
    assert probed(still).level is Level.FAULT


test_levels_of_the_sign = levels_of(H09.sign, {
    "a third of the context hidden": ("fault",
        lambda: edited(lambda row: row.update(attended=np.where(np.arange(14) % 3 == 0,
            row["trained"], 1).astype(np.uint8)))),
    "truncated rollouts without loss may be hidden": ("ok", lambda: edited(mask_out)),
    "another prompt is not a hidden one": ("ok", lambda: edited(unlike)),
})  # fmt: skip

test_levels = levels_of(None, {
    "the probe finds tool output that is not seen": ("fault",
        lambda: probed(np.full(96, 0.5), tool=effect("tool", np.zeros(40)))),
    "the probe is content with any dependence": ("ok",
        lambda: probed(rng_of({"step": 1, "rollout": 0}).random(96) * 0.01)),
    "the probe sees a context that is hidden in part": ("fault",
        lambda: probed(np.full(96, 0.5), trace=edited(hide, steps=1))),
    "a policy that is certain of everything": ("unknown",
        lambda: probed(np.zeros(96), logprob=-1e-6)),
    "without any context nothing can be told": ("unknown", lambda: probed([])),
})  # fmt: skip
