"""H26 optimizer-not-stepping."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h26_optimizer_not_stepping import OptimizerNotStepping
from flatline.trace import Trace

H = OptimizerNotStepping()
NOT_MERGED = SimpleNamespace(run={})
NAMES = tuple(f"{layer}.{half}.weight" for layer in "qv" for half in ("lora_A", "lora_B"))


def trace_with(weights=lambda row: {}, steps=lambda row: {}, n=5):
    rows = healthy_rows(steps=n)
    rows["weights"] = [{**row, **weights(row)} for row in rows["weights"]]
    rows["steps"] = [{**row, **(steps(row) if row["step"] else {})} for row in rows["steps"]]
    return Trace.from_rows(run=run_facts(), **rows)


def subject(
    *,
    norms=(0, 1, 0, 1),
    updates=(0, 1, 0, 1),
    held=(1, 1, 1, 1),
    rate=1e-3,
    advantage=1,
    zero=(0, 1, 0, 1),
    trace=NOT_MERGED,
):
    census = SimpleNamespace(
        names=NAMES,
        norms=np.array(norms, float),
        in_optimizer=np.array(held, bool),
        total_norm=float(np.linalg.norm(norms)),
        zero=np.array(zero, bool),
    )
    step = SimpleNamespace(
        gradients=census,
        learning_rate=rate,
        advantage=np.array([advantage, -advantage], float),
        update_norms=np.array(updates, float),
        changed_share_of=np.array(updates, float),
    )
    return SimpleNamespace(one_step=lambda: step, trace=trace)


def test_gradients_below_the_last_digit_of_the_weights_are_named_and_not_the_optimizer():
    still = {"update_norm": 0.0, "changed_share": 0.0, "size": 100, "norm": 10.0}
    found = H.sign(trace_with(lambda row: {**still, "grad_norm": 1e-9}))
    assert found.level is Level.FAULT
    assert found.headline == "Your gradients are too small to change the weights."
    assert {"H25", "H27"} <= set(found.explains)
    usual = H.sign(trace_with(lambda row: {**still, "grad_norm": 1e-2}))
    assert usual.level is Level.FAULT and usual.headline == H.headline


def unused(row):
    """A tensor that no gradient reaches, as a recorder of `weight.grad` writes it."""
    return {"grad_norm": None, "update_norm": 0.0} if "layers.0" in row["name"] else {}


def test_steps_without_advantages_do_not_count():
    rows = healthy_rows(steps=4)
    for row in rows["rollouts"]:
        row["advantage"] = 0.0
    for row in rows["weights"]:
        row |= {"grad_norm": 0.0, "update_norm": 0.0}
    assert H.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.UNKNOWN


@pytest.mark.parametrize(("broken", "says"), [
    ({"held": (1, 1, 0, 0)}, "lacks 2 of 4"),
    ({"norms": (0, 0, 0, 0)}, "gets a gradient"),
    ({"updates": (0, 0, 0, 0)}, "changes no weight"),
    ({"rate": 0.0}, "rate is 0"),
])  # fmt: skip
def test_the_probe_names_what_keeps_the_weights_still(broken, says):
    found = H.probe(subject(**broken))
    assert found.level is Level.FAULT
    assert says in found.text


def rates(values):
    return trace_with(steps=lambda row: {"learning_rate": values(row["step"])}, n=12)


def test_a_rate_that_ends_long_before_the_run_is_a_fault_with_its_step():
    found = H.sign(rates(lambda step: 2e-6 * step if step < 6 else 0.0))
    assert found.level is Level.FAULT
    assert "from step 6 on" in found.text


def test_zeros_that_a_loggers_rounding_may_have_made_are_no_fault():
    assert "learning rate is 0" not in H.sign(rates(lambda step: 0.0001 if step < 6 else 0.0)).text


def test_a_schedule_that_comes_to_0_at_the_last_step_is_no_fault():
    assert "learning rate is 0" not in H.sign(rates(lambda step: 1e-6 * (12 - step))).text


MERGED = {"adapter_merged": {"layers": 4, "of": 4, "step": 1}}


def still(row):
    return {"update_norm": 0.0, "changed_share": 0.0, "grad_norm": None}


def merged_trace(weights=lambda row: {}):
    rows = healthy_rows(steps=5)
    rows["weights"] = [{**row, **weights(row)} for row in rows["weights"]]
    return Trace.from_rows(run={**run_facts(), **MERGED}, **rows)


def test_an_adapter_that_is_merged_while_it_should_be_trained_is_named_and_not_the_optimizer():
    found = H.sign(merged_trace(still))
    assert found.level is Level.FAULT and found.proven
    assert "merged into the base" in found.headline and "unmerge" in found.fix
    assert "4 of 4 layers" in found.text


def test_the_probe_sees_an_adapter_that_sampling_left_merged():
    found = H.probe(subject(trace=merged_trace()))
    assert found.level is Level.FAULT and "merged" in found.headline


test_levels_of_the_sign = levels_of(H.sign, {
    "a rate of zero": ("fault", lambda: trace_with(steps=lambda row: {"learning_rate": 0.0})),
    "gradients that are no number": ("fault",
        lambda: trace_with(steps=lambda row: {"grad_norm": np.nan})),
    "the first gradient of a lora a is zero in a healthy run": ("ok",
        lambda: trace_with(lambda row: {"grad_norm": 0.0,
            "update_norm": 0.0} if row["step"] == 1 else {})),
    "a sharded tensor of which nothing was seen": ("unknown",
        lambda: trace_with(lambda row: {"update_norm": 0.0, "sampled": 0})),
    "an adapter that was merged once and moves all the same is no cause": ("ok",
        lambda: merged_trace()),
    "tensors with gradient and rate that never change": ("fault",
        lambda: trace_with(lambda row: {"update_norm": 0.0, "changed_share": 0.0})),
    "one tensor whose gradient is rounding": ("note",
        lambda: trace_with(lambda row: {"update_norm": 0.0, "size": 100, "norm": 10.0,
            "grad_norm": 1e-9} if "layers.0" in row["name"] else {"size": 900})),
    "one lost tensor": ("fault",
        lambda: trace_with(lambda row: {"update_norm": 0.0} if "0" in row["name"] else {})),
    "a tensor in half precision may be rounded away": ("no fault",
        lambda: trace_with(lambda row: {"update_norm": 0.0,
            "dtype": "bfloat16"} if "layers.0" in row["name"] else {})),
    "gradients of zero with advantages": ("fault",
        lambda: trace_with(lambda row: {"grad_norm": 0.0, "update_norm": 0.0})),
    "a tensor that no gradient reaches is no fault": ("note",
        lambda: trace_with(lambda row: {**unused(row),
            "size": 100 if "layers.0" in row["name"] else 4096})),
    "half of the elements": ("suspect", lambda: trace_with(unused)),
    "where no gradient was recorded at all weights that stand still": ("fault",
        lambda: trace_with(lambda row: {"grad_norm": None, "update_norm": 0.0})),
    "a skipped step is no fault and one step is too little": ("ok",
        lambda: trace_with(lambda row: {"update_norm": 0.0} if row["step"] == 3 else {})),
    "a skipped step is no fault and one step is too little (2)": ("unknown",
        lambda: healthy_trace(steps=1)),
    "without weights a growing kl shows movement and nothing else does": ("ok",
        lambda: Trace.from_rows(run=run_facts(), **healthy_rows(steps=8) | {"weights": []})),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "the probe expects no gradient of a lora a whose b is zero": ("ok", lambda: subject()),
    "the probe needs advantages": ("unknown", lambda: subject(advantage=0.0)),
    "what zeros beside it multiply has no gradient yet (2)": ("suspect",
        lambda: subject(norms=(0, 1, 0, 1), zero=(0, 0, 0, 0))),
    "what zeros beside it multiply has no gradient yet": ("ok",
        lambda: subject(norms=(0, 1, 0, 1))),
    "what zeros beside it multiply has no gradient yet (3)": ("suspect",
        lambda: subject(norms=(0, 0, 0, 1), updates=(0, 0, 0, 1))),
})  # fmt: skip
