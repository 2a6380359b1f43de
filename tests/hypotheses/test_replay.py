"""Replays: the stored rollouts scored under another rule, with known answers."""

import numpy as np
import pytest
from tests.hypotheses.edited import without
from tests.traces import healthy_rows, healthy_trace, rollout_rows, run_facts, trace_of

from flatline.errors import NotRecorded
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.answers import LOOKED_AT, looked_at
from flatline.hypotheses.base import HasReplay
from flatline.hypotheses.replay import FEWEST, SAME, advantages, agreement, trained
from flatline.trace import Trace

REPLAYS = [one for one in HYPOTHESES if isinstance(one, HasReplay)]
every_replay = pytest.mark.parametrize("hypothesis", REPLAYS, ids=lambda one: one.id)


def trained_on(rewards, *, scaling="group", **columns):
    """A trace of one step whose advantages are what the run's own scaling makes of its rewards."""
    run = run_facts(scale_rewards=scaling)
    plain = trace_of(rewards, run=run)
    own = advantages(plain, plain.rollouts["reward"])
    return trace_of(rewards, run=run, advantage=own.tolist(), **columns)


def paid_for(change, steps=6):
    """A healthy run whose rewards, and with them its advantages, were changed."""
    rng = np.random.default_rng(0)
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        row |= change(row, rng)
    paid = Trace.from_rows(run=run_facts(), **rows)
    own = advantages(paid, paid.rollouts["reward"])
    for row, value in zip(rows["rollouts"], own, strict=True):
        row["advantage"] = value
    return Trace.from_rows(run=run_facts(), **rows)


def test_these_are_decided_by_stored_rollouts():
    assert [one.id for one in REPLAYS] == ["H01", "H05", "H32", "H39"]


@every_replay
def test_a_healthy_run_is_not_decided_against_and_says_so(hypothesis):
    assert hypothesis.replay(healthy_trace()).agreement.low > 0.5


@every_replay
def test_what_was_not_recorded_is_said(hypothesis):
    with pytest.raises(NotRecorded):
        hypothesis.replay(Trace.from_rows(run=run_facts()))


@pytest.mark.parametrize("code", ["H01", "H05", "H39"])
def test_without_advantages_nothing_can_be_compared(code):
    with pytest.raises(NotRecorded, match="advantage"):
        find(code).replay(without("rollouts", "advantage"))


@every_replay
def test_a_few_groups_decide_nothing(hypothesis):
    assert not hypothesis.replay(healthy_trace(steps=1, prompts=FEWEST - 1)).decided


@pytest.mark.parametrize("scaling", ["group", "batch", "none"])
def test_the_runs_own_advantages_are_reproduced(scaling):
    rewards = np.random.default_rng(0).random((16, 8))
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread = {
        "group": rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4,
        "batch": rewards.std(ddof=1) + 1e-4,
        "none": 1.0,
    }
    trace = trained_on(rewards.tolist(), scaling=scaling)
    assert trained(trace) == pytest.approx((centred / spread[scaling]).ravel())


def test_an_unknown_reward_has_no_advantage_and_does_not_count_in_its_group():
    rewards = [[0.0, 1.0, np.nan, 1.0]] * 2
    values = advantages(trace_of(rewards), np.array(rewards).ravel(), scaling="none")
    assert values == pytest.approx([-2 / 3, 1 / 3, 0, 1 / 3] * 2)


def test_agreement_is_a_cosine_and_counts_groups_that_say_anything():
    group = np.repeat(np.arange(20), 4)
    a = np.tile([1.0, -1.0, 0.0, 0.0], 20)
    b = np.tile([1.0, 0.0, -1.0, 0.0], 20)
    a[-8:], b[-8:] = 0.0, 0.0
    found = agreement(a, b, group)
    assert found.value == pytest.approx(0.5)
    assert found.n == 18
    assert agreement(a, 3 * a, group).value == pytest.approx(1.0)
    assert agreement(a, -b, group).value == pytest.approx(-0.5)


def test_the_interval_covers_what_many_groups_show():
    rng = np.random.default_rng(0)

    def groups(n):
        size = np.exp(rng.normal(0, 1, n)).repeat(8)  # some groups weigh far more than others
        signal = rng.normal(0, 1, 8 * n) * size
        noise = rng.normal(0, 1, 8 * n) * np.exp(rng.normal(0, 1, n)).repeat(8)
        return agreement(signal, signal + noise, np.arange(n).repeat(8))

    truth = groups(200_000).value
    found = [groups(60) for _ in range(400)]
    covered = np.mean([one.low < truth < one.high for one in found])
    assert covered > 0.88


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_advantage_that_is_no_number_counts_as_none(value):
    rewards = np.random.default_rng(0).random((16, 2))
    found = trained(trace_of(rewards.tolist(), advantage=np.tile([value, 1.0], 16).tolist()))
    assert found.tolist() == [0.0, 1.0] * 16


def test_h01_equal_spreads_are_decided_and_crumbs_beside_real_differences_are_not():
    rng = np.random.default_rng(0)
    same = rng.integers(0, 2, (32, 8)).astype(float)
    assert find("H01").replay(trained_on(same.tolist())).decided
    crumbs = 0.5 + rng.normal(0, 0.003, (64, 8))
    crumbs[::16] = [0.0, 1.0] * 4
    done = find("H01").replay(trained_on(crumbs.tolist()))
    assert done.agreement.high < SAME and not done.decided


@pytest.mark.parametrize("scaling", ["none", False, "batch"])
def test_h01_a_run_without_the_division_is_decided(scaling):
    crumbs = 0.5 + np.random.default_rng(0).normal(0, 0.003, (64, 8))
    crumbs[::16] = [0.0, 1.0] * 4
    done = find("H01").replay(trained_on(crumbs.tolist(), scaling=scaling))
    assert done.decided
    assert done.agreement.value == pytest.approx(1.0)


def test_h05_a_reward_that_is_the_answer_is_decided():
    done = find("H05").replay(paid_for(lambda row, rng: {"reward": row["parts"]["exact_match"]}))
    assert done.decided
    assert done.agreement.value == pytest.approx(1.0)


def test_h05_noise_and_a_fighting_part_are_not_decided():
    noisy = paid_for(lambda row, rng: {"reward": row["reward"] + rng.normal(0, 3)})
    done = find("H05").replay(noisy)
    assert not done.decided and done.agreement.high < 0.5
    against = paid_for(lambda row, rng: {"reward": -row["parts"]["exact_match"]})
    assert find("H05").replay(against).agreement.value == pytest.approx(-1.0)


def test_h05_needs_a_part_that_says_right_or_wrong():
    with pytest.raises(NotRecorded, match="right or wrong"):
        find("H05").replay(trace_of([[0.0, 1.0]] * 8, parts={"f1": 0.4}))
    assert not find("H05").replay(trace_of([[0.0, 1.0]] * 8, parts={"exact_match": 0.0})).decided


@pytest.mark.parametrize(("dead", "decided"), [(0, True), (20, True), (40, False), (95, False)])
def test_h32_the_root_of_the_live_share_is_what_is_left(dead, decided):
    done = find("H32").replay(trace_of([[0.5] * 8] * dead + [[0.0, 1.0] * 4] * (100 - dead)))
    assert done.agreement.value == pytest.approx(np.sqrt(1 - dead / 100))
    assert done.decided is decided


def misread(row, rng):
    hit = row["parts"]["exact_match"] and row["group"] % 8 < 6
    return {"reward": 0.0, "parts": {"exact_match": 0.0, "format": 0.0}} if hit else {}


def test_h39_right_answers_that_are_paid_as_wrong_are_paid_and_change_the_update():
    done = find("H39").replay(paid_for(misread))
    assert done.agreement.high < SAME and not done.decided


def test_h39_mended_rewards_are_what_a_sound_parser_would_have_given():
    sound = paid_for(lambda row, rng: {"reward": row["parts"]["exact_match"], "finish": "eos"})
    broken = paid_for(
        lambda row, rng: (
            (misread(row, rng) or {"reward": row["parts"]["exact_match"]}) | {"finish": "eos"}
        )
    )
    wanted = agreement(trained(broken), trained(sound), sound.groups().index)
    assert find("H39").replay(broken).agreement == pytest.approx(wanted)


def test_h39_a_sound_parser_is_decided():
    done = find("H39").replay(paid_for(lambda row, rng: {}))
    assert done.decided
    assert done.agreement.value == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["no marks at all", "<answer>wrong</answer>"])
def test_h39_answers_that_cannot_be_read_or_are_never_right_decide_nothing(text):
    assert not find("H39").replay(paid_for(lambda row, rng: {"completion": text})).decided


def test_of_a_long_run_whole_groups_are_read():
    steps = 2 * LOOKED_AT // 512
    rows = [
        row
        for step in range(1, steps + 1)
        for row in rollout_rows([[0.0, 1.0] * 4] * 64, step=step)
    ]
    trace = Trace.from_rows(run=run_facts(), rollouts=rows)
    read = looked_at(trace)
    assert set(np.bincount(trace.groups().index[read])) == {0, 8}
    assert 0.95 * LOOKED_AT <= len(read) <= LOOKED_AT
    assert trace.rollouts["step"][read].max() == steps
