"""H13: a limit of the sampler ends turns in the middle."""

import pytest
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.config import RunConfig
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


def test_many_cut_turns_at_the_start_that_earn_less_are_suspected():
    finding = H13.sign(cut(lambda row: row["rollout"] % 2))
    assert finding.level is Level.SUSPECT
    assert "turn_length" in finding.evidence[0].text


def test_cut_turns_that_earn_as_much_are_only_noted_unless_there_are_very_many():
    assert H13.sign(cut(lambda row: row["rollout"] % 5 == 0, reward=None)).level is Level.NOTE
    assert H13.sign(cut(lambda row: row["rollout"] % 2, reward=None)).level is Level.SUSPECT


def test_what_is_cut_later_is_the_policys_doing():
    assert H13.sign(cut(lambda row: row["step"] > 1)).level is Level.OK


def test_completions_at_the_trainers_own_limit_are_not_the_samplers():
    found = H13.sign(cut(lambda row: row["rollout"] % 2, max_completion_length=9))
    assert found.level is Level.OK


def test_empty_completions_count_as_cut():
    rows = healthy_rows(steps=1)
    for row in rows["rollouts"][::2]:
        row |= {"finish": "eos", "completion_tokens": 0, "reward": 0.0}
    assert H13.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.SUSPECT


def test_a_healthy_run_is_fine_and_few_prompts_say_nothing():
    assert H13.sign(healthy_trace(steps=3)).level is Level.OK
    assert H13.sign(healthy_trace(steps=1, prompts=2)).level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("config", "factor"),
    [(RunConfig(), "max_new_tokens"), (RunConfig(fault="turn-limit-low"), "fault")],
)
def test_the_limit_or_its_fault_is_taken_away(config, factor):
    assert H13.experiment(config).factor == factor


def test_a_stop_string_is_no_limit():
    rows = healthy_rows(steps=4)
    for row in rows["rollouts"]:
        row["finish"] = "stop"
    assert H13.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK
