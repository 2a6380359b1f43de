"""H03: the KL starts at 0, has the right sign and stays small."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h03_kl_divergence import KlDivergence
from flatline.live.records import ReferenceGap
from flatline.trace import Trace

H03 = KlDivergence()


def trace_of_kl(kl, *, loss=None, first=1, **settings):
    steps = [{"step": first + i, "kl": value} for i, value in enumerate(kl)]
    for row, value in zip(steps, loss if loss is not None else [], strict=False):
        row["loss"] = value
    return Trace.from_rows(run=run_facts(**settings), steps=steps)


def gap_of(gap_T, *, untrained=True):
    size = len(gap_T)
    return ReferenceGap(
        source="trainer",
        rollout_T=np.zeros(size, int),
        position_T=np.arange(size),
        ids_T=np.ones(size, int),
        gap_T=np.asarray(gap_T, dtype=float),
        untrained=untrained,
        moved_gap=0.1,
    )


def probed(gap, *, beta=0.04):
    advantages = SimpleNamespace(advantage_R=np.array([1.0, -1.0, 0.0]))
    return H03.probe(
        subject(
            reference_gap=lambda: gap,
            trace=healthy_trace(steps=1),
            batch=advantages,
            settings={"bf16": False, "beta": beta},
        )
    )


def held(*, kl=0.002, beta=5.0, gain=0.0, steps=9):
    rows = healthy_rows(steps=steps, gain=gain)
    for row in rows["steps"][2:]:
        row["kl"] = kl
    rows["steps"][1]["kl"] = 0.0
    return H03.sign(Trace.from_rows(run=run_facts(beta=beta), **rows))


def test_a_kl_above_zero_before_any_update_is_a_fault():
    rows = healthy_rows(steps=3)
    rows["steps"][1]["kl"] = 0.5
    assert H03.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.FAULT


@pytest.mark.parametrize(("bf16", "level"), [(True, Level.OK), (False, Level.FAULT)])
def test_bf16_may_start_a_little_above_zero(bf16, level):
    assert H03.sign(trace_of_kl([5e-3] * 4, bf16=bf16)).level is level


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_so_may_every_other_run_in_16_bits(precision):
    assert H03.sign(trace_of_kl([5e-3] * 4, bf16=False, precision=precision)).level is Level.OK


def adapted(*norms):
    """A run with adapters whose B's have these norms after a first step of length 1."""
    rows = healthy_rows(steps=3)
    rows["steps"][1]["kl"] = 0.5
    named = ["q.lora_A", *(f"layer{at}.lora_B.default" for at in range(len(norms)))]
    rows["weights"] = [
        {"step": step, "name": name, "size": 10, "norm": norm, "update_norm": 1.0, "sampled": 10}
        for step in (1, 2)
        for name, norm in zip(named, [50.0, *norms], strict=True)
    ]
    return H03.sign(Trace.from_rows(run=run_facts(lora={"r": 8}), **rows))


@pytest.mark.parametrize("norms", [(1.0, 30.0), ()], ids=["trained", "unknown"])
def test_a_run_that_may_go_on_from_an_adapter_is_only_suspected(norms):
    assert adapted(*norms).level is Level.SUSPECT


@pytest.mark.parametrize("random", [True, False])
def test_an_adapter_that_was_made_at_random_is_told_from_another_reference(random):
    lora = {"r": 4, "starts_at_random": random}
    steps = [{"step": k + 1, "kl": 0.4} for k in range(8)]
    found = H03.sign(Trace.from_rows(run=run_facts(beta=0.04, bf16=False, lora=lora), steps=steps))
    assert found.level is Level.SUSPECT
    assert ("starts at random" in found.headline) is ("init_lora_weights" in found.fix) is random


def test_a_loss_that_falls_as_the_kl_rises_has_the_wrong_sign():
    kl = np.array([0, 0.001, 0.002, 0.005, 0.008, 0.013, 0.018])
    assert H03.sign(trace_of_kl(kl, loss=-0.04 * kl, loss_type="grpo")).level is Level.FAULT
    assert H03.sign(trace_of_kl(kl, loss=0.04 * kl, loss_type="grpo")).level is Level.OK


@pytest.mark.parametrize("several", [{"num_iterations": 2}, {"steps_per_generation": 8}])
def test_with_several_updates_per_batch_the_loss_is_not_the_kl_alone(several):
    kl = np.array([0, 0.001, 0.002, 0.005, 0.008, 0.013, 0.018])
    assert H03.sign(trace_of_kl(kl, loss=-0.04 * kl, loss_type="grpo", **several)).level is Level.OK


def test_a_loss_that_other_things_move_says_nothing_about_the_sign():
    kl = np.array([0, 0.001, 0.002, 0.005, 0.008, 0.013, 0.018])
    assert H03.sign(trace_of_kl(kl, loss=-10 * kl, loss_type="grpo")).level is Level.OK


def test_a_policy_that_the_wrong_sign_has_broken_does_not_hide_it():
    """Its loss is noise: over all steps nothing shows, in the first half it does."""
    kl = [0.01 * s**1.5 for s in range(20)] + [2.0 + s for s in range(20)]
    loss = [-0.04 * k for k in kl[:20]] + [(-1) ** s * 9.0 for s in range(20)]
    finding = H03.sign(trace_of_kl(kl, loss=loss, beta=0.04, loss_type="grpo"))
    assert "wrong sign" in finding.text
    assert "over 20 steps" in finding.text


test_levels = levels_of(None, {
    "an adapter that starts at zero must start with a kl of zero": ("fault",
        lambda: adapted(1.0, 1.1)),
    "the probe wants zero while the adapters are untrained": ("ok",
        lambda: probed(gap_of([0.0] * 10))),
    "the probe wants zero while the adapters are untrained (3)": ("suspect",
        lambda: probed(gap_of([0.5] * 10, untrained=None))),
    "the probe wants zero while the adapters are untrained (2)": ("fault",
        lambda: probed(gap_of([0.0] * 9 + [-3.0]))),
    "the probe wants zero while the adapters are untrained (4)": ("ok",
        lambda: probed(gap_of([0.5] * 10, untrained=False))),
    "a beta above the advantages that holds the policy": ("suspect", lambda: held()),
    "a heavy beta is no alarm while the reward rises the policy moves or": ("ok",
        lambda: held(gain=0.5, steps=30)),
    "a heavy beta is no alarm while the reward rises the policy moves or (2)": ("ok",
        lambda: held(kl=0.5)),
    "a heavy beta is no alarm while the reward rises the policy moves or (3)": ("ok",
        lambda: held(steps=4)),
    "a usual beta may hold the policy as it likes": ("ok", lambda: held(beta=0.1)),
    "the probe weighs beta against the advantages of the batch": ("suspect",
        lambda: probed(gap_of([0.0] * 10), beta=5.0)),
    "the probe weighs beta against the advantages of the batch (2)": ("ok",
        lambda: probed(gap_of([0.0] * 10), beta=0.1)),
    "the probe has nothing to say without a reference or tokens (2)": ("unknown",
        lambda: probed(gap_of([]))),
    "the probe has nothing to say without a reference or tokens": ("ok", lambda: probed(None)),
})  # fmt: skip

test_levels_of_the_sign = levels_of(H03.sign, {
    "a kl out of control": ("suspect", lambda: trace_of_kl([0, 0.1, 13, 377, 15_000, 235_000])),
    "overflow counts as out of control and gaps in the log do not (2)": ("ok",
        lambda: trace_of_kl([0, None, 0.01, None, 0.02])),
    "overflow counts as out of control and gaps in the log do not": ("suspect",
        lambda: trace_of_kl([0, np.inf, np.inf, np.inf])),
    "one spike is no explosion": ("ok", lambda: trace_of_kl([0, 0.01, 0.02, 40, 0.02, 0.03])),
    "beta below zero": ("fault", lambda: trace_of_kl([0, 0, 0], beta=-0.04)),
    "two late steps": ("unknown", lambda: trace_of_kl([5.0, 6.0], first=30)),
    "a kl below zero is not ruled out": ("note", lambda: trace_of_kl([-0.5] * 12)),
})  # fmt: skip
