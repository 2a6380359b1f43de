"""H61: rollouts of one packed row see each other."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, rng_of, subject
from tests.traces import healthy_trace

from flatline.hypotheses.base import Level
from flatline.hypotheses.h61_packed_neighbours import PackedNeighbours
from flatline.live.records import BesideOthers

H61 = PackedNeighbours()


def alike(row):
    """Rollouts of a prompt begin with the same four tokens at the same log-probs, and then part."""
    row["prompt_ids"] = np.full(6, row["rollout"] // 8)
    row["prompt_attended"] = np.ones(6, dtype=np.uint8)
    row["ids"] = np.concatenate([np.arange(4), 100 + row["rollout"] + np.arange(10)])
    row["sampler"] = np.concatenate([[-0.5, -1, -0.2, -2], row["sampler"][4:]])
    row["trainer"] = row["sampler"]


def off_by(row, noise):
    row["trainer"] = np.asarray(row["trainer"]) + noise


def packed(row):
    """The first of four rollouts is right, the others are scored behind it."""
    alike(row)
    if row["rollout"] % 4:
        off_by(row, rng_of(row).normal(0, 0.5, len(row["ids"])))


def dropped(row):
    """Dropout: no rollout is as it was sampled."""
    alike(row)
    off_by(row, rng_of(row).normal(0, 0.5, len(row["ids"])))


def hidden(row):
    """Some rollouts are scored without their prompt, which is another defect."""
    alike(row)
    if row["rollout"] % 4:
        row["prompt_attended"] = np.zeros(len(row["prompt_ids"]), dtype=np.uint8)
        off_by(row, -0.5)


def probed(change, *, rollouts=4, **settings):
    found = BesideOthers(rollouts=rollouts, change=change)
    return H61.probe(subject(beside_others=lambda: found, settings=settings or {"bf16": False}))


def test_equal_beginnings_that_differ_while_one_is_as_sampled_are_a_fault():
    finding = H61.sign(edited(packed))
    assert finding.level is Level.FAULT
    assert "one rollout is as it was sampled" in finding.text


def test_a_healthy_run_is_fine():
    assert H61.sign(edited(alike)).level is Level.OK


@pytest.mark.parametrize("other", [dropped, hidden])
def test_noise_in_all_rollouts_and_hidden_prompts_have_another_cause(other):
    assert H61.sign(edited(other)).level is not Level.FAULT


def test_in_16_bits_a_trace_cannot_tell():
    assert H61.sign(edited(packed, settings={"bf16": True})).level is Level.UNKNOWN


def test_prompts_whose_rollouts_all_begin_otherwise_say_nothing():
    assert H61.sign(healthy_trace(steps=1)).level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("change", "settings", "level"),
    [
        (0.0, {"bf16": False}, Level.OK),
        (0.2, {"bf16": False}, Level.FAULT),
        (0.2, {"bf16": True}, Level.OK),
        (3.0, {"bf16": True}, Level.FAULT),
    ],
)
def test_the_probe_gives_the_neighbours_other_words(change, settings, level):
    assert probed(change, **settings).level is level


def test_passes_of_one_rollout_cannot_show_it():
    assert probed(float("nan"), rollouts=0).level is Level.UNKNOWN
