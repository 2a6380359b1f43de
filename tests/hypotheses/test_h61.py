"""H61: rollouts of one packed row see each other."""

import numpy as np
import pytest
from tests.hypotheses.edited import edited, levels_of, rng_of, subject

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


@pytest.mark.parametrize("other", [dropped, hidden])
def test_noise_in_all_rollouts_and_hidden_prompts_have_another_cause(other):
    assert H61.sign(edited(other)).level is not Level.FAULT


@pytest.mark.parametrize(("change", "settings", "level"), [
    (0.0, {"bf16": False}, Level.OK),
    (0.2, {"bf16": False}, Level.FAULT),
    (0.2, {"bf16": True}, Level.OK),
    (3.0, {"bf16": True}, Level.FAULT),
])  # fmt: skip
def test_the_probe_gives_the_neighbours_other_words(change, settings, level):
    assert probed(change, **settings).level is level


test_levels_of_the_sign = levels_of(H61.sign, {
    "equal beginnings that differ while one is as sampled": ("fault", lambda: edited(packed)),
    "a healthy run": ("ok", lambda: edited(alike)),
    "in 16 bits a trace cannot tell": ("unknown", lambda: edited(packed, settings={"bf16": True})),
})  # fmt: skip


test_levels = levels_of(None, {
    "passes of one rollout cannot show it": ("unknown", lambda: probed(float("nan"), rollouts=0)),
})  # fmt: skip
