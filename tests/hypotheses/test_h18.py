"""H18: the sampler follows updates in part."""

import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h18_merge_rounding import MergeRounding
from flatline.live.step_records import SteppedDelivery
from flatline.trace import Trace

H18 = MergeRounding()
LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "targets": None}


def parting(gap_of_step, *, lora=LORA, behind=1, **settings):
    """A healthy run whose sampler and trainer part."""
    rows = healthy_rows(steps=8)
    for row in rows["steps"][1:]:
        row["logprob_gap"] = gap_of_step(row["step"])
    for row in rows["rollouts"]:
        row["weight_version"] = max(0, row["step"] - behind)
    return Trace.from_rows(run=run_facts(lora=lora, **settings), **rows)


def probed(gap_new, *, gap_old=0.03, gap_before=1e-7, bf16=False, lora=LORA):
    done = SteppedDelivery(visible=0.03, gap_before=gap_before, gap_new=gap_new, gap_old=gap_old)
    settings = {"bf16": bf16, "lora": lora}
    return H18.probe(subject(stepped_delivery=lambda: done, settings=settings))


def test_a_sampler_that_parts_with_the_first_update_is_suspected():
    finding = H18.sign(parting(lambda step: 1e-7 if step == 1 else 0.01))
    assert finding.level is Level.SUSPECT
    assert "H06" in finding.explains


def test_in_16_bits_an_adapter_rounds_as_soon_as_it_adds_something():
    def gap(step):
        return 2e-7 if step == 1 else 0.001 * step

    assert H18.sign(parting(gap, precision="bfloat16")).level is Level.OK
    assert H18.sign(parting(gap, precision="float32")).level is Level.SUSPECT


@pytest.mark.parametrize(("gap_new", "gap_old", "bf16", "level"), [
    (1e-7, 0.03, False, Level.OK),
    (0.004, 0.02, False, Level.SUSPECT),
    (0.004, 0.02, True, Level.OK),
    (0.03, 0.0, False, Level.UNKNOWN),
    (3.0, 3.0, False, Level.UNKNOWN),
])  # fmt: skip
def test_the_probe_wants_a_real_step_to_arrive(gap_new, gap_old, bf16, level):
    assert probed(gap_new, gap_old=gap_old, bf16=bf16).level is level


test_levels = levels_of(None, {
    "the probe cannot tell where the two differ before the step": ("unknown",
        lambda: probed(0.02, gap_before=0.02)),
    "the probe cannot tell where the two differ before the step (2)": ("unknown",
        lambda: probed(float("nan"))),
    "without an adapter nothing is merged (2)": ("ok", lambda: probed(0.02, lora=None)),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H18.sign, {
    "dropout in the adapter is not taken for a rounded merge": ("unknown",
        lambda: parting(lambda step: 1e-7 if step == 1 else 0.01, lora=LORA | {"dropout": 0.05})),
    "a sampler that parts later has another cause": ("ok",
        lambda: parting(lambda step: 1e-7 if step < 4 else 0.1)),
    "it cannot be told where the two differ from the start or weights are old": ("unknown",
        lambda: parting(lambda _: 0.02)),
    "it cannot be told where the two differ from the start or weights are old (2)": ("unknown",
        lambda: parting(lambda step: 1e-7 if step == 1 else 0.01, behind=2)),
    "later passes over a batch are behind by design": ("unknown",
        lambda: parting(lambda step: 1e-7 if step == 1 else 0.01, steps_per_generation=2,
            num_iterations=2)),
    "without an adapter nothing is merged": ("ok", lambda: healthy_trace(steps=4)),
    "a healthy run follows": ("ok", lambda: healthy_trace(steps=5, lora=LORA)),
})  # fmt: skip
