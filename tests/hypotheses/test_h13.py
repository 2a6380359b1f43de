"""H13: a limit of the sampler ends turns in the middle."""

from tests.hypotheses.edited import altered, levels_of
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h13_sampler_limits import SamplerLimits
from flatline.trace import Trace

H13 = SamplerLimits()


def cut(where, *, steps=4, reward=0.0, **settings):
    """A healthy run in which a limit ended the rollouts that `where` names."""
    rows = healthy_rows(steps=steps)
    for row in rows["rollouts"]:
        row["finish"] = "answered"
        if where(row):
            row |= {"finish": "turn_length", "completion_tokens": 9}
            row["reward"] = row["reward"] if reward is None else reward
    return Trace.from_rows(run=run_facts(**settings), **rows)


def test_empty_completions_count_as_cut():
    rows = healthy_rows(steps=1)
    for row in rows["rollouts"][::2]:
        row |= {"finish": "eos", "completion_tokens": 0, "reward": 0.0}
    assert H13.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.SUSPECT


test_levels_of_the_sign = levels_of(H13.sign, {
    "many cut turns at the start that earn less": ("suspect",
        lambda: cut(lambda row: row["rollout"] % 2)),
    "cut turns that earn as much are only noted unless there are very many": ("note",
        lambda: cut(lambda row: row["rollout"] % 5 == 0, reward=None)),
    "cut turns that earn as much are only noted unless there are very many (2)": ("suspect",
        lambda: cut(lambda row: row["rollout"] % 2, reward=None)),
    "what is cut later is the policys doing": ("ok", lambda: cut(lambda row: row["step"] > 1)),
    "completions at the trainers own limit are not the samplers": ("ok",
        lambda: cut(lambda row: row["rollout"] % 2, max_completion_length=9)),
    "a stop string is no limit": ("ok",
        lambda: altered("rollouts", lambda row: row.update(finish="stop"), steps=4)),
})  # fmt: skip
