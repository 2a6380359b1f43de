"""H15: what is scored depends on the padding."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h15_padding import Padding
from flatline.live.records import AloneVsBatch
from flatline.trace import Trace

H15 = Padding()


def lengths(of_group, off=0.0, *, certain=False, **settings):
    """A healthy run whose prompts have lengths; log-probs of padded ones are off. The answer to the
    longest may be `certain`."""
    rows = healthy_rows(steps=2)
    longest = max(of_group(group) for group in range(8))
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        rollout["prompt_tokens"] = of_group(rollout["group"])
        if rollout["prompt_tokens"] < longest:
            row["trainer"] = np.asarray(row["trainer"]) - off
        elif certain:
            row["trainer"] = row["sampler"] = np.full(len(row["ids"]), -1e-6)
    return Trace.from_rows(run=run_facts(**settings), **rows)


def probed(difference, *, padding=20, **settings):
    alone = AloneVsBatch(
        rollouts=np.arange(2),
        padding=np.full(2, padding),
        difference=np.array([1e-6, difference]),
    )
    return H15.probe(subject(alone_vs_batch=lambda _: alone, settings=settings))


@pytest.mark.parametrize(
    "settings", [{"bf16": True}, {"precision": "float16"}, {"precision": "tf32"}]
)
def test_in_16_bits_other_shapes_round_otherwise(settings):
    assert H15.sign(lengths(lambda group: 10 + group, off=0.2, **settings)).level is Level.UNKNOWN


def test_a_gap_of_all_prompts_has_another_cause():
    rows = healthy_rows(steps=2)
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        rollout["prompt_tokens"] = 10 + rollout["group"]
        row["trainer"] = np.asarray(row["trainer"]) - 0.2
    assert H15.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.OK


@pytest.mark.parametrize(("difference", "settings", "level"), [
    (2e-6, {"bf16": False}, Level.OK),
    (0.1, {"bf16": False}, Level.FAULT),
    (0.1, {"bf16": True}, Level.OK),
    (0.1, {"bf16": False, "precision": "bfloat16"}, Level.OK),
    (0.0018, {"bf16": False, "precision": "tf32"}, Level.OK),
    (0.0018, {"bf16": False, "precision": "float32"}, Level.FAULT),
    (0.1, {"bf16": False, "precision": "tf32"}, Level.FAULT),
])  # fmt: skip
def test_the_probe_scores_rollouts_alone(difference, settings, level):
    assert probed(difference, **settings).level is level


def test_padding_is_seen_in_a_later_step_where_the_first_has_none():
    rows = healthy_rows(steps=3)
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        later = rollout["step"] > 1
        rollout["prompt_tokens"] = 10 + rollout["group"] % 8 if later else 10
        if later and rollout["group"] % 8 < 7:
            row["trainer"] = np.asarray(row["trainer"]) - 0.2
    assert H15.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.FAULT


test_levels_of_the_sign = levels_of(H15.sign, {
    "padded prompts that differ where the longest agrees": ("fault",
        lambda: lengths(lambda group: 10 + group, off=0.2)),
    "a longest prompt whose answer is certain": ("unknown",
        lambda: lengths(lambda group: 10 + group, off=0.2, certain=True)),
    "padding that changes nothing": ("ok", lambda: lengths(lambda group: 10 + group)),
})  # fmt: skip


test_levels = levels_of(None, {
    "a batch without padding rules it out": ("ok", lambda: probed(5.0, padding=0)),
})  # fmt: skip
