"""H34 duplicate-samples."""

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

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


test_levels_of_the_sign = levels_of(H.sign, {
    "copies that the log probs allow are what a sure policy does": ("ok",
        lambda: run(copies=8, chance=0.99)),
    "copies that the log probs allow are what a sure policy does (2)": ("ok", lambda: run()),
    "few groups rule copies out but do not prove them (2)": ("unknown",
        lambda: run(prompts=4, copies=2)),
    "few groups rule copies out but do not prove them": ("ok", lambda: run(prompts=4)),
    "a temperature makes the log probs less certain": ("suspect",
        lambda: run(copies=4, temperature=0.5)),
    "without log probs copies are noted at most": ("note", lambda: run(copies=8, logprobs=())),
    "without log probs copies are noted at most (2)": ("ok", lambda: run(logprobs=())),
    "a sampler that gives no log probs is held against the policy it should draw from": ("suspect",
        lambda: run(copies=8, logprobs=("trainer",))),
    "a sampler that gives no log probs is held against the policy it (2)": ("ok",
        lambda: run(copies=8, chance=0.99, logprobs=("trainer",))),
    "a sampler that gives no log probs is held against the policy it (3)": ("ok",
        lambda: run(logprobs=("trainer",))),
})  # fmt: skip
