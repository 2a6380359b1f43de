"""H19: cached keys and values outlive the weights."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, model_tokens, subject
from tests.hypotheses.test_h18 import LORA, parting
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h19_stale_cache import StaleCache
from flatline.live.step_records import SteppedDelivery
from flatline.trace import Trace

H19 = StaleCache()


def visited_again(off, *, stays=False):
    """Half of the prompts of later steps are those of the first; their log-probs are off. A sampler
    that stays has those of the reference."""
    rows = healthy_rows(steps=4)
    rng = np.random.default_rng(0)
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        known = rollout["group"] < 4
        if known:
            rollout["prompt_id"] = f"p{rollout['group']}"
        if known and rollout["step"] > 1:
            at = model_tokens(row)
            row["trainer"][at] += rng.normal(0, off, len(at)).astype(np.float32)
        if stays:
            row["reference"] = np.asarray(row["sampler"]) + 1e-7
    return Trace.from_rows(run=run_facts(bf16=True), **rows)


def probed(gap_new, lora):
    done = SteppedDelivery(visible=0.03, gap_before=1e-7, gap_new=gap_new, gap_old=0.02)
    settings = {"bf16": False, "lora": lora}
    return H19.probe(subject(stepped_delivery=lambda: done, settings=settings))


def parted_behind(shared):
    """Sampler and trainer part with the first update; prompts begin with so many equal tokens."""
    rows = healthy_rows(steps=5)
    rng = np.random.default_rng(0)
    for row in rows["steps"][1:]:
        row["logprob_gap"] = 1e-7 if row["step"] == 1 else 0.05
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        own = np.random.default_rng([rollout["step"], rollout["group"]]).integers(0, 100, 40)
        row["prompt_ids"] = np.concatenate([np.zeros(shared, int), own])
        row["prompt_attended"] = np.ones(len(row["prompt_ids"]), np.uint8)
        at = model_tokens(row)
        row["trainer"][at] += rng.normal(0, 0.05 * (row["step"] > 1), len(at)).astype(np.float32)
    return Trace.from_rows(run=run_facts(), **rows)


@pytest.mark.parametrize(("gap_new", "lora", "level"), [
    (1e-7, None, Level.OK), (0.004, None, Level.SUSPECT), (0.004, LORA, Level.NOTE),
])  # fmt: skip
def test_the_probe_wants_a_real_step_to_arrive(gap_new, lora, level):
    assert probed(gap_new, lora).level is level


test_levels_of_the_sign = levels_of(H19.sign, {
    "prompts that come again and differ more": ("suspect", lambda: visited_again(0.2)),
    "prompts that come again and differ as little": ("ok", lambda: visited_again(0.0)),
    "what parts behind prompts of which nothing was read before is no cache": ("unknown",
        lambda: parted_behind(shared=6)),
    "what parts behind prompts of which nothing was read before is no cache (2)": ("suspect",
        lambda: parted_behind(shared=20)),
    "with an adapter it looks like a merge that rounds and": ("note",
        lambda: parting(lambda step: 1e-7 if step == 1 else 0.01)),
    "a sampler that never got weights has no old cache however prompts come again": ("unknown",
        lambda: visited_again(0.2, stays=True)),
    "without an adapter a sampler that parts with the first update": ("suspect",
        lambda: parting(lambda step: 1e-7 if step == 1 else 0.01, lora=None)),
})  # fmt: skip
