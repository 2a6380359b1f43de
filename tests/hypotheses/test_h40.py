"""H40 hop-factor."""

from types import SimpleNamespace

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import run_facts, trace_of

from flatline.hypotheses.h40_hop_factor import HopFactor

H = HopFactor()


def run(factor, *, groups=30, scaling="none"):
    rng = np.random.default_rng(0)
    right = (rng.random((groups, 8)) < 0.5).astype(float)
    hops = np.repeat(2 + np.arange(groups) % 3, 8)
    reward = right * factor(hops.reshape(groups, 8))
    parts = [{"exact_match": one} for one in right.ravel()]
    facts = run_facts(scale_rewards=scaling)
    return trace_of(reward.tolist(), run=facts, hops=hops.tolist(), parts=parts)


def subject(gold, scaling="none"):
    hops = np.array([2.0 + i % 3 for i in range(len(gold))])
    return SimpleNamespace(
        settings={"scale_rewards": scaling},
        oracle=lambda: SimpleNamespace(gold_R=np.array(gold), hops_R=hops),
    )


def paid(part, name):
    """Thirty groups that are paid a part of the reward alone; two to four hops, in turn."""
    hops = np.repeat(2 + np.arange(30) % 3, 8).tolist()
    parts = [{name: one} for one in part.ravel()]
    facts = run_facts(scale_rewards="none", correct=name)
    return trace_of(part.tolist(), run=facts, hops=hops, parts=parts)


test_levels_of_the_sign = levels_of(H.sign, {
    "right answers that earn more at more hops": ("suspect", lambda: run(lambda hops: hops / 2)),
    "a factor that the groups spread cancels": ("note",
        lambda: run(lambda hops: hops / 2, scaling="group")),
    "one pay for all": ("ok", lambda: run(lambda hops: 1.0)),
    "one level or few right answers": ("unknown", lambda: run(lambda hops: hops / 2, groups=1)),
    "a part that says how right says nothing of a factor": ("unknown",
        lambda: paid(np.random.default_rng(0).random((30, 8)) / (1 + np.arange(30) % 3)[:,
            None], "accuracy")),
    "a factor inside the part itself is seen": ("suspect",
        lambda: paid((np.random.default_rng(0).random((30,
            8)) < 0.5) * (1 + np.arange(30)[:, None] % 3 / 2), "correctness")),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "the probe asks what gold earns": ("suspect", lambda: subject([1.0, 1.5, 2.0])),
    "the probe asks what gold earns (2)": ("note", lambda: subject([1.0, 1.5, 2.0], "group")),
    "the probe asks what gold earns (3)": ("ok", lambda: subject([1.0, 1.0, 1.0])),
})  # fmt: skip
