"""H68 verifier-failures."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h05_reward_signal import RewardSignal
from flatline.hypotheses.h68_verifier_failures import VerifierFailures
from flatline.live.records import PaidAgain

H = VerifierFailures()


def paid(*groups, **columns):
    """Groups whose rollouts all say the same, and what each is paid."""
    texts = [f"answer {at}" for at, group in enumerate(groups) for _ in group]
    return trace_of(groups, completion=texts, **columns)


def asked(*askings, group=4):
    first, before, now = np.array(askings, dtype=float)
    again = PaidAgain(before_R=before, now_R=now, group_R=np.arange(len(now)) // group)
    trace = paid(*first.reshape(-1, group).tolist())
    return SimpleNamespace(paid_again=lambda: again, trace=trace)


def test_noise_in_every_reward_is_left_to_the_reward_signal():
    trace = paid(*np.random.default_rng(0).normal(size=(8, 4)).tolist())
    assert H.sign(trace).level is Level.OK
    assert RewardSignal().sign(trace).level is Level.SUSPECT


def with_parts(lost, *, weights=None):
    """Four groups of four; these rollouts lack what the judge says."""
    parts = [{"form": 1.0} | ({} if at in lost else {"judge": 1.0}) for at in range(16)]
    rewards = [[sum(parts[4 * g + i].values()) + 0.1 * i for i in range(4)] for g in range(4)]
    run = run_facts(reward_weights=weights or {"form": 1.0, "judge": 1.0})
    return trace_of(rewards, parts=parts, completion="x", run=run)


def test_a_part_without_a_weight_may_be_missing():
    weights = {"form": 1.0, "judge": 0.0}
    assert "counts as 0" not in H.sign(with_parts({1, 6, 11}, weights=weights)).text


def test_a_judge_that_flips_when_it_is_asked_again_is_suspected():
    before = [1, 1, 0, 1] * 3
    found = H.probe(asked(before, before, [0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0]))
    assert found.level is Level.SUSPECT


def test_a_judge_that_answers_alike_is_fine():
    before = [1, 1, 0, 1] * 3
    assert H.probe(asked(before, before, before)).level is Level.OK


def test_what_changes_once_and_stays_is_not_the_judges_mood():
    before, later = [1, 1, 0, 1] * 3, [0, 1, 0, 1] * 3
    assert H.probe(asked(before, later, later)).level is Level.OK


@pytest.mark.parametrize(("size", "level"), [(0.01, Level.NOTE), (5, Level.SUSPECT)])
def test_a_moody_judge_is_suspected_where_its_mood_decides(size, level):
    rng, before = np.random.default_rng(0), np.array([1.0, 2, 3, 4] * 4)
    askings = [before + size * rng.normal(size=16) for _ in range(2)]
    assert H.probe(asked(before, *askings)).level is level


test_levels_of_the_sign = levels_of(H.sign, {
    "a run whose every text has one pay": ("ok",
        lambda: paid([1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1])),
    "two prompts": ("ok", lambda: paid([1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1])),
    "a reward for being different is no failing judge": ("ok", lambda: paid(*[[1, 0, 0, 0]] * 4)),
    "rows that lack a part of their groups": ("suspect", lambda: with_parts({1, 6, 11})),
    "the same text paid and not paid": ("suspect",
        lambda: paid([1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1])),
    "a run that never says a thing twice cannot tell": ("unknown",
        lambda: trace_of([[1, 0, 1, 0]] * 4, completion=[f"answer {at}" for at in range(16)])),
    "a function that is not for a prompt is no failure": ("no suspect",
        lambda: with_parts({0, 1, 2, 3, 4, 5, 6, 7})),
})  # fmt: skip
