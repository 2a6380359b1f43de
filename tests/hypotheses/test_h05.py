"""H05 reward-signal."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h05_reward_signal import RewardSignal
from flatline.trace import Trace

H = RewardSignal()


def changed(change, steps=8):
    rng = np.random.default_rng(0)
    rows = healthy_rows(steps=steps)
    for at, row in enumerate(rows["rollouts"]):
        row["completion"] += f" {at}"
        row |= change(row, rng)
    return Trace.from_rows(run=run_facts(), **rows)


def noisy(row, rng):
    return {"reward": row["reward"] + rng.normal(0, 3)}


def faintly_noisy(row, rng):
    return {"reward": row["reward"] + rng.normal(0, 0.7)}


def brief(row, rng):
    short = float(rng.random())
    return {"reward": row["reward"] + 9 * short, "parts": {**row["parts"], "brevity": short}}


def subject(gold):
    return SimpleNamespace(
        oracle=lambda: SimpleNamespace(gold_R=np.array(gold)), trace=healthy_trace(steps=1)
    )


def test_noise_that_drowns_the_answer_is_suspected():
    found = H.sign(changed(noisy))
    assert found.level is Level.SUSPECT
    assert found.measured.high < 0.4


def test_the_part_that_the_reward_follows_instead_is_named():
    found = H.sign(changed(brief))
    assert found.level is Level.SUSPECT
    assert "`brevity` more" in found.text


def test_a_part_that_is_certainly_followed_more_is_suspected_sooner():
    def rather_brief(row, rng):
        short = float(rng.random())
        return {"reward": row["reward"] + 3 * short, "parts": {**row["parts"], "brevity": short}}

    ruled, noise = H.sign(changed(rather_brief)), H.sign(changed(faintly_noisy))
    assert ruled.level is Level.SUSPECT and 0.4 < ruled.measured.high < 0.6
    assert noise.level is not Level.SUSPECT and 0.4 < noise.measured.high < 0.6


def outweighed(weight, groups=20, correct="right", **settings):
    """Groups of eight, four of them right; a part for brevity that knows nothing of that."""
    rng = np.random.default_rng(1)
    parts = [{"right": float(at % 2), "brief": float(rng.random())} for at in range(groups * 8)]
    rewards = [part["right"] + weight * part["brief"] for part in parts]
    weights = {"right": 1.0, "brief": float(weight)}
    run = run_facts(correct=correct, reward_weights=weights, **settings)
    grouped = np.array(rewards).reshape(groups, 8).tolist()
    return trace_of(grouped, run=run, parts=parts, completion=[str(at) for at in range(len(parts))])


def test_a_part_that_outweighs_the_answer_is_suspected_with_its_size():
    found = H.sign(outweighed(20.0))
    assert found.level is Level.SUSPECT
    assert found.measured.n == 20 and found.measured.low > 0.25


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.99])
def test_a_part_that_weighs_less_than_the_answer_never_outweighs_it(weight):
    assert H.sign(outweighed(weight)).level is not Level.SUSPECT


def test_parts_that_are_normalised_by_themselves_do_not_outweigh_by_their_size():
    found = H.sign(outweighed(20.0, multi_objective_aggregation="normalize_then_sum"))
    assert not found.headline.startswith("Another part")


@pytest.mark.parametrize("says", ["\ufffd\ufffd", "the same words"])
def test_other_ids_may_decode_to_the_same_text(says):
    def alike(row, rng):
        tokens = 4 + row["rollout"] if says == "the same words" else 4
        return {"completion": says, "completion_tokens": tokens}

    assert H.sign(changed(alike)).level is Level.OK


def fight(row, rng):
    right = row["parts"]["exact_match"]
    parts = {"exact_match": right, "recall": right, "precision": 1 - right}
    return {"parts": parts, "reward": right}


def test_a_reward_that_is_no_number_is_suspected():
    found = H.sign(
        changed(lambda row, rng: {"reward": np.nan if row["step"] > 5 else row["reward"]})
    )
    assert found.level is Level.SUSPECT
    assert "not a number, from step 6 on" in found.text


def test_a_logged_reward_that_is_no_number_is_suspected_and_a_missing_one_is_not():
    steps = [{"step": s, "reward": np.nan if s > 20 else 0.5} for s in range(1, 61)]
    found = H.sign(Trace.from_rows(steps=steps))
    assert found.level is Level.SUSPECT
    assert "from step 21 on" in found.text
    sparse = [{"step": s, "reward": None if s % 2 else 0.5} for s in range(1, 61)]
    with pytest.raises(NotRecorded):
        H.sign(Trace.from_rows(steps=sparse))


test_levels_of_the_probe = levels_of(H.probe, {
    "the probe suspects gold whose reward scatters": ("suspect",
        lambda: subject(np.random.default_rng(0).normal(1, 1, 16))),
    "the probe allows a factor for hops and crumbs": ("ok", lambda: subject([1.0, 1.5, 2.0, 1.5])),
    "the probe allows a factor for hops and crumbs (2)": ("ok",
        lambda: subject(1 + np.random.default_rng(0).normal(0, 0.003, 16))),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H.sign, {
    "wrong answers ahead in too few groups are not enough": ("no suspect",
        lambda: outweighed(20.0, groups=2)),
    "one completion with two rewards": ("suspect",
        lambda: trace_of(np.random.default_rng(0).random((8, 8)).tolist(),
            completion=["same", "other"] * 32)),
    "parts that fight each other": ("note", lambda: changed(fight)),
    "a run that trains on another part alone means it": ("ok",
        lambda: changed(lambda row, rng: {"reward": row["parts"]["format"]})),
})  # fmt: skip
