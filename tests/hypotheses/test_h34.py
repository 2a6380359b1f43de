"""H34 duplicate-samples."""

import numpy as np
from tests.traces import healthy_rows, run_facts

from flatline.config import RunConfig
from flatline.hypotheses.base import Level
from flatline.hypotheses.h34_duplicate_samples import DuplicateSamples
from flatline.trace import Trace

H = DuplicateSamples()


def run(*, copies=1, chance=0.001, logprobs=("sampler", "trainer"), prompts=8, **settings):
    """A run whose completions stand `copies` times in their group, each of probability `chance`."""
    rows = healthy_rows(steps=1 if prompts < 8 else 3, prompts=prompts)
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        source = rollout["rollout"] - rollout["rollout"] % copies
        row["ids"] = np.random.default_rng([row["step"], source]).integers(0, 100, len(row["ids"]))
        own = row["trained"] == 1
        for side in ("sampler", "trainer"):
            row[side] = np.where(own, np.log(chance) / own.sum(), 0.0).astype(np.float32)
            if side not in logprobs:
                del row[side]
        rollout["completion"] = f"text {source}"
    return Trace.from_rows(run=run_facts(**settings), **rows)


def test_copies_that_the_log_probs_do_not_allow_are_a_fault():
    found = H.sign(run(copies=4))
    assert found.level is Level.FAULT
    assert found.measured.value > 0.35
    assert "token for token" in found.evidence[0].text


def test_copies_that_the_log_probs_allow_are_what_a_sure_policy_does():
    assert H.sign(run(copies=8, chance=0.99)).level is Level.OK
    assert H.sign(run()).level is Level.OK


def test_few_groups_rule_copies_out_but_do_not_prove_them():
    assert H.sign(run(prompts=4)).level is Level.OK
    assert H.sign(run(prompts=4, copies=2)).level is Level.UNKNOWN


def test_a_temperature_makes_the_log_probs_less_certain():
    assert H.sign(run(copies=4, temperature=0.5)).level is Level.SUSPECT


def test_without_log_probs_copies_are_noted_at_most():
    found = H.sign(run(copies=8, logprobs=()))
    assert found.level is Level.NOTE
    assert H.sign(run(logprobs=())).level is Level.OK


def test_a_low_temperature_can_be_taken_away():
    assert H.experiment(RunConfig(temperature=0.5)).change == {"temperature": 1.0}
    assert H.experiment(RunConfig()) is None
    assert H.experiment(RunConfig(fault="samples-duplicated")).change == {"fault": None}


def test_a_sampler_that_gives_no_log_probs_is_held_against_the_policy_it_should_draw_from():
    found = H.sign(run(copies=8, logprobs=("trainer",)))
    assert found.level is Level.SUSPECT and "the trainer's log-probs allow 0%" in found.text
    assert H.sign(run(copies=8, chance=0.99, logprobs=("trainer",))).level is Level.OK
    assert H.sign(run(logprobs=("trainer",))).level is Level.OK
