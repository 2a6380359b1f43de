"""H64: a shard of a row does not see what stands before it."""

import numpy as np
import pytest
from tests.hypotheses.edited import subject

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


def test_changes_that_all_stop_at_one_token_are_a_fault():
    finding = probed(reach(lambda _: 40), reach(cut))
    assert finding.level is Level.FAULT
    assert "at token 39 of the 60" in finding.text


def test_in_16_bits_it_is_suspected():
    assert probed(reach(cut), bf16=True).level is Level.SUSPECT


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


def test_completions_without_doubt_say_nothing():
    assert probed(reach(cut, logp=-1e-6)).level is Level.UNKNOWN
    assert probed().level is Level.UNKNOWN
