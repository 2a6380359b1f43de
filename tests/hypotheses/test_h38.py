"""H38 reward-hacking."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Level
from flatline.hypotheses.h38_reward_hacking import RewardHacking
from flatline.live.records import Oracle, OracleCase
from flatline.trace import Trace

H = RewardHacking()


def run(right, bonus, *, steps=30, calls=lambda step: 2):
    """A reward of the answer and a bonus, whose chances depend on the step."""
    rows, rng = healthy_rows(steps=steps), np.random.default_rng(0)
    for row in rows["rollouts"]:
        answer = float(rng.random() < right(row["step"]))
        extra = float(rng.random() < bonus(row["step"]))
        row["parts"] = {"exact_match": answer, "precision": 1 - extra}
        row["reward"] = answer + extra
        row["tool_calls"] = calls(row["step"])
    return Trace.from_rows(run=run_facts(), **rows)


def gamed(step):
    return 0.02 + 0.9 * (step > 15)


def oracle(*scripts, gold=1.0):
    tied = tuple(
        OracleCase(problem="p", script=name, reward=gold, gold_reward=gold) for name in scripts
    )
    short = () if gold == 1 else (tied[0] if tied else _gold(gold),)
    return SimpleNamespace(
        oracle=lambda: Oracle(
            problems=4,
            gold_R=np.full(4, gold),
            hops_R=np.full(4, 2.0),
            below_maximum=short,
            not_below_gold=tied,
            played=20,
        )
    )


def _gold(reward):
    return OracleCase(problem="p", script="gold", reward=reward, gold_reward=reward)


def log(seed=0, **slopes):
    """Rows of a log; each column goes from 0.5 by its slope, with noise."""
    rng, rows = np.random.default_rng(seed), 90
    names = {name: name.replace("__", "/") for name in slopes}
    listed = []
    for at in range(rows):
        row = {
            names[name]: 0.5 + slope * at / rows + rng.normal(0, 0.03)
            for name, slope in slopes.items()
        }
        listed.append({"step": at + 1, "reward": row["reward"], "metrics": row})
    return Trace.from_rows(run={"source": "import:trl", "settings": {}}, steps=listed)


def test_a_log_in_which_a_part_falls_while_the_reward_rises_is_no_all_clear():
    found = H.sign(log(reward=0.4, rewards__bonus__mean=0.6, rewards__right__mean=-0.2))
    assert found.level is Level.NOTE
    assert found.points_at_cause


@pytest.mark.parametrize("seed", range(8))
def test_a_log_whose_parts_rise_or_stand_gets_no_verdict(seed):
    with pytest.raises(NotRecorded):
        H.sign(log(seed, reward=0.4, rewards__a__mean=0.2, rewards__b__mean=0.0, eval__acc=0.0))


@pytest.mark.parametrize("name", ["reward_std", "frac_reward_zero_std", "rewards__brief__mean"])
def test_a_held_out_column_that_is_no_score_may_fall(name):
    with pytest.raises(NotRecorded):
        H.sign(log(reward=0.4, **{f"eval_{name}": -0.3}))


@pytest.mark.parametrize("name", ["eval_reward", "val-core__x__reward__mean@4", "test__pass_rate"])
def test_what_trainers_call_a_held_out_score_is_one(name):
    assert H.sign(log(reward=0.4, **{name: -0.3})).level is Level.SUSPECT


test_levels_of_the_sign = levels_of(H.sign, {
    "a run that learns": ("ok", lambda: healthy_trace(steps=12, gain=0.5)),
    "a part that falls while answers get better": ("note",
        lambda: run(lambda step: 0.2 + 0.5 * (step > 15), gamed)),
    "a log whose held out score falls while the reward rises": ("suspect",
        lambda: log(reward=0.4, eval__accuracy=-0.3)),
    "a reward that rises while answers get worse": ("suspect",
        lambda: run(lambda step: 0.6 - 0.4 * (step > 15), gamed, calls=lambda step: step)),
    "a reward that never followed the answer is left to h05": ("no suspect",
        lambda: run(lambda step: 0.05 * (step < 10), lambda step: 0.3 + 0.6 * (step > 15))),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "tricks that earn what gold earns": ("fault",
        lambda: oracle("cite_everything", "dump_all_documents")),
    "honest mistakes that earn as much are left to h39": ("ok",
        lambda: oracle("cite_everything", "wrong_answer")),
    "honest mistakes that earn as much are left to h39 (2)": ("unknown",
        lambda: oracle("cite_everything", gold=0.5)),
    "honest mistakes that earn as much are left to h39 (3)": ("ok", lambda: oracle()),
})  # fmt: skip
