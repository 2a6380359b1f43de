"""H64: a shard of a row does not see what stands before it."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject

from flatline.hypotheses.base import Level
from flatline.hypotheses.h64_shard_borders import ShardBorders
from flatline.live.records import Reach

H64 = ShardBorders()
PLACES = np.array([3, 8, 13, 23, 28, 33])


def reach(end_of, *, length=40, logp=-1.0):
    """A completion of which a change at a place moves all tokens up to `end_of(place)`."""
    tokens = np.arange(length)
    moved = [(tokens >= at) & (tokens < end_of(at)) for at in PLACES]
    logp_T = np.full(length, logp)
    return Reach(prompt=20, places=PLACES, logp_T=logp_T, moved_CT=np.stack(moved))


def probed(*found, **settings):
    return H64.probe(subject(reaches=lambda: found, settings=settings or {"bf16": False}))


def cut(at):
    return 20 if at < 20 else 40


@pytest.mark.parametrize(
    "end_of",
    [
        lambda at: 40,  # all later tokens move
        lambda at: min(at + 9, 40),  # a sliding window, whose end moves along
        lambda at: at,  # nothing moves: what was changed is hidden, which is H09's
        lambda at: 38,  # nothing later moves at all: the last words are copied
    ],
)
def test_attention_that_forgets_otherwise_is_not_a_border(end_of):
    assert probed(reach(end_of)).level is Level.OK


test_levels = levels_of(None, {
    "changes that all stop at one token": ("fault",
        lambda: probed(reach(lambda _: 40), reach(cut))),
    "in 16 bits it": ("suspect", lambda: probed(reach(cut), bf16=True)),
    "completions without doubt say nothing": ("unknown", lambda: probed(reach(cut, logp=-1e-6))),
    "completions without doubt say nothing (2)": ("unknown", lambda: probed()),
})  # fmt: skip
