"""H09: what stands before a trained token must be attended."""

import numpy as np
import pytest
from tests.hypotheses.edited import batch, edited, effect, rng_of, subject, without
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
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
    assert "hidden: ' w" in finding.evidence[0].text


def test_a_third_of_the_context_hidden_is_a_fault_too():
    def hide_some(row):
        row["attended"] = np.where(np.arange(14) % 3 == 0, row["trained"], 1).astype(np.uint8)

    assert H09.sign(edited(hide_some)).level is Level.FAULT


def test_a_healthy_run_hides_nothing():
    assert H09.sign(healthy_trace(steps=3)).level is Level.OK


def test_a_single_hidden_token_is_noted():
    rows = healthy_rows(steps=1)
    rows["tokens"][0]["attended"][5] = 0
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.NOTE


def test_rollouts_that_no_pass_trained_on_hide_nothing():
    rows = healthy_rows(steps=2)
    for row in rows["tokens"][::2]:
        row["attended"] = row["prompt_attended"] = None
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


def test_truncated_rollouts_without_loss_may_be_hidden():
    def mask_out(row):
        if row["rollout"] % 2:
            row["trained"] = row["attended"] = np.zeros(14, np.uint8)

    assert H09.sign(edited(mask_out)).level is Level.OK


def test_without_a_recorded_mask_the_log_probs_of_the_first_step_tell():
    rows = healthy_rows(steps=1)
    for row in rows["tokens"]:
        row.pop("attended"), row.pop("prompt_attended")
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK
    for row in rows["tokens"]:
        unlike(row)
    assert H09.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.SUSPECT


def test_another_prompt_is_not_a_hidden_one():
    assert H09.sign(edited(unlike)).level is Level.OK


def test_the_probe_finds_a_trainer_that_does_not_notice_another_question():
    still = np.zeros(96)
    still[::12] = 3.0  # the token after an empty row of the mask may move
    assert probed(still).level is Level.FAULT


def test_the_probe_finds_tool_output_that_is_not_seen():
    finding = probed(np.full(96, 0.5), tool=effect("tool", np.zeros(40)))
    assert finding.level is Level.FAULT
    assert "tool output" in finding.text


def test_the_probe_is_content_with_any_dependence():
    assert probed(rng_of({"step": 1, "rollout": 0}).random(96) * 1e-2).level is Level.OK


def test_the_probe_sees_a_context_that_is_hidden_in_part():
    assert probed(np.full(96, 0.5), trace=edited(hide, steps=1)).level is Level.FAULT


def test_a_policy_that_is_certain_of_everything_cannot_be_probed():
    assert probed(np.zeros(96), logprob=-1e-6).level is Level.UNKNOWN


def test_without_any_context_nothing_can_be_told():
    assert probed([]).level is Level.UNKNOWN


def test_a_trace_without_log_probs_or_masks_is_not_guessed_about():
    with pytest.raises(NotRecorded):
        H09.sign(without("tokens", "attended", "prompt_attended", "sampler", steps=1))
