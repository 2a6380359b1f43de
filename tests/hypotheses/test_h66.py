"""H66 speculative-drafts."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.test_faults import tiny

from flatline.hypotheses.base import Level
from flatline.hypotheses.h66_speculative_drafts import SpeculativeDrafts
from flatline.live.records import Surprise
from flatline.training.subject import OurSubject
from flatline.training.trainer import build

H = SpeculativeDrafts()
PROMPTS, GROUP, TOKENS = 8, 8, 40


def exact(p, q, rng):
    """The rule that keeps the distribution."""
    draft = rng.choice(len(q), p=q)
    if rng.random() < p[draft] / q[draft]:
        return draft
    left = np.maximum(p - q, 0)
    return rng.choice(len(p), p=left / left.sum())


def plausible(p, q, rng):
    """Typical acceptance."""
    draft = rng.choice(len(q), p=q)
    return draft if p[draft] > 0.09 else rng.choice(len(p), p=p)


def drawn_again(p, q, rng):
    """Accepted as in the exact rule, but drawn again from all of p."""
    draft = rng.choice(len(q), p=q)
    return draft if rng.random() < p[draft] / q[draft] else rng.choice(len(p), p=p)


def subject(rule, *, sharp=2.0, apart=0.0, settings=None, tokens=TOKENS):
    """A batch whose tokens were drawn with this rule, with drafts from a sharper policy."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(PROMPTS * GROUP):
        sums = np.zeros(3)
        for _ in range(tokens):
            logits = rng.normal(0, 2, 12)
            p, q = (np.exp(scale * logits) / np.exp(scale * logits).sum() for scale in (1, sharp))
            entropy = -(p * np.log(p)).sum()
            off = np.log(p[rule(p, q, rng)]) + entropy
            sums += off, entropy, (p * (np.log(p) + entropy) ** 2).sum()
        rows.append(sums)
    off_R, entropy_R, variance_R = np.array(rows).T
    found = Surprise(
        off_R=off_R,
        entropy_R=entropy_R,
        variance_R=variance_R,
        group_R=np.arange(len(rows)) // GROUP,
        tokens=len(rows) * tokens,
        apart=apart,
    )
    return SimpleNamespace(surprise=lambda: found, settings=settings or {})


@pytest.mark.parametrize("rule", [plausible, drawn_again])
def test_a_rule_that_changes_the_distribution_is_suspected(rule):
    assert H.probe(subject(rule)).level is Level.SUSPECT


@pytest.mark.parametrize("fault", ["drafts-accepted", None])
def test_a_live_trainer_whose_sampler_takes_plausible_drafts(tmp_path, fault):
    built = build(tiny(tmp_path, fault=fault, datasets="lab,,train[:64]", batch_size=64))
    assert H.probe(OurSubject(built)).level is (Level.SUSPECT if fault else Level.OK)


test_levels_of_the_probe = levels_of(H.probe, {
    "drafts with the exact rule": ("ok", lambda: subject(exact)),
    "settings that cut are left to the sampling parameters": ("unknown",
        lambda: subject(plausible, settings={"top_p": 0.9, "top_k": 0})),
    "where sampler and trainer disagree nothing is said of drafts": ("unknown",
        lambda: subject(plausible, apart=0.5)),
    "a batch without doubt says too little": ("unknown", lambda: subject(plausible, tokens=2)),
    "tokens that are too unlikely are suspected as well": ("suspect",
        lambda: subject(lambda p, q, rng: rng.choice(len(q), p=q), sharp=0.3)),
})  # fmt: skip
