"""H06: weights reach the sampler, stay out of the reference and can move."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import edited, levels_of, rng_of, subject
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h06_lora_weight_sync import LoraWeightSync
from flatline.hypotheses.h19_stale_cache import StaleCache
from flatline.live.records import Delivery
from flatline.trace import Trace

H06 = LoraWeightSync()
LORA = {"lora": {"r": 8, "alpha": 16, "dropout": 0.0, "targets": []}}


def drift(row):
    noise = rng_of(row).normal(0, 0.05 * (row["step"] - 1), 14)
    row["trainer"] = np.asarray(row["trainer"]) + noise


def rebuilt(change, **settings):
    rows = healthy_rows(steps=5)
    change(rows)
    return Trace.from_rows(run=run_facts(**settings), **rows)


def adapter_rows(names, **held):
    return [
        {"step": 1, "name": name, "update_norm": 0.1, "in_optimizer": held.get(name[-6:])}
        for name in names
    ]


def delivered(*, before=1e-6, moved=1e-6, restored=1e-6, visible=0.3, same=None, bf16=False):
    done = Delivery(
        visible=visible,
        gap_before=before,
        gap_moved=moved,
        gap_restored=restored,
        same_by_chance=same,
    )
    return H06.probe(
        subject(reference_gap=lambda: None, delivery=lambda: done, settings={"bf16": bf16})
    )


def lora_probe(*, moved_gap=0.2, kinds=("lora_A", "lora_B"), held=None):
    census = SimpleNamespace(kinds=kinds, in_optimizer=held or [True] * len(kinds))
    return H06.probe(
        subject(
            reference_gap=lambda: SimpleNamespace(moved_gap=moved_gap),
            one_step=lambda: SimpleNamespace(gradients=census),
            delivery=lambda: pytest.fail("not needed"),
        )
    )


def unnamed(rows):
    for row in rows["rollouts"]:
        del row["weight_version"]
    for row in rows["tokens"]:
        drift(row)


def left_behind(row):
    """The trainer moves on, and the sampler stays with the reference."""
    row["reference"] = np.asarray(row["sampler"]) + 1e-7
    drift(row)


def test_a_sampler_that_stays_with_the_reference_never_got_any_weights():
    trace = edited(left_behind, steps=5)
    assert H06.sign(trace).level is Level.FAULT
    assert StaleCache().sign(trace).level is Level.UNKNOWN


def played_again(rows, *, follows):
    """Every step plays the prompts of the first, to the same tokens."""
    first = {row["rollout"]: row for row in rows["tokens"] if row["step"] == 1}
    for row in rows["tokens"]:
        then = first[row["rollout"]]
        row |= {name: then[name] for name in ("prompt_ids", "ids")}
        row["trainer"] = np.asarray(then["trainer"]) + (row["step"] - 1) * 0.03
        row["sampler"] = np.asarray(then["sampler"]) + (row["step"] - 1) * follows


def test_a_sampler_whose_log_probs_stay_behind_prompts_that_come_again_got_no_weights():
    trace = rebuilt(lambda rows: played_again(rows, follows=0.0))
    assert H06.sign(trace).level is Level.FAULT
    assert StaleCache().sign(trace).level is Level.UNKNOWN


def freeze(rows):
    for row in rows["rollouts"]:
        row["weight_version"] = 0


def delay(rows):
    for row in rows["rollouts"]:
        row["weight_version"] = max(row["step"] - 2, 0)
    for row in rows["tokens"]:
        drift(row)


def test_one_generation_for_many_steps_is_by_design():
    def one_generation(rows):
        for row in rows["rollouts"]:
            row["weight_version"] = 0

    finding = H06.sign(rebuilt(one_generation, steps_per_generation=8))
    assert finding.level not in (Level.FAULT, Level.SUSPECT)


def test_a_reference_that_is_the_policy_after_updates_is_a_fault():
    def same(rows):
        for row in rows["tokens"]:
            row["reference"] = row["trainer"]

    assert H06.sign(rebuilt(same, **LORA)).level is Level.FAULT
    assert H06.sign(rebuilt(same, **LORA, beta=0.0)).level is Level.OK
    assert H06.sign(rebuilt(same, **LORA, bf16=True)).level is Level.OK
    assert H06.sign(rebuilt(same, **LORA, precision="float16")).level is Level.OK
    assert H06.sign(rebuilt(same)).level is Level.FAULT


def still(rows):
    for row in rows["tokens"]:
        row["reference"] = row["trainer"]
    for row in rows["weights"]:
        row["update_norm"] = 0.0


def test_noise_of_dropout_is_not_a_missing_delivery():
    def noisy(row):
        row["prompt_ids"], row["ids"] = np.zeros(6, int), np.arange(14)  # all begin alike
        drift(row)

    assert H06.sign(edited(noisy, steps=5)).level is Level.UNKNOWN


def test_the_probe_follows_the_sampler_there_and_back():
    assert delivered().level is Level.OK
    assert delivered(moved=0.28).level is Level.FAULT
    assert delivered(restored=0.2).level is Level.FAULT
    assert delivered(before=0.02, moved=0.03, restored=0.02, bf16=True).level is Level.OK
    assert delivered(before=4.0, moved=4.2, restored=4.0).level is Level.UNKNOWN
    assert delivered(before=0.02, moved=0.26, restored=0.01).level is Level.UNKNOWN, "top-k"
    assert delivered(before=0.006, moved=0.01, restored=0.006).level is Level.OK, "a penalty"
    assert delivered(visible=1e-4).level is Level.UNKNOWN


def test_the_probe_of_a_sampler_without_log_probs_looks_at_its_tokens():
    silent = {"before": np.nan, "moved": np.nan, "restored": np.nan}
    assert delivered(**silent, same=1e-6).level is Level.FAULT
    assert delivered(**silent).level is Level.UNKNOWN


test_levels_of_the_sign = levels_of(H06.sign, {
    "a gap that grows under the newest weights": ("suspect", lambda: edited(drift, steps=5)),
    "where rollouts name no weights the log probs tell": ("suspect", lambda: rebuilt(unnamed)),
    "a sampler that follows in part has left the start": ("suspect",
        lambda: rebuilt(lambda rows: played_again(rows, follows=0.02))),
    "one weight version for all steps": ("fault", lambda: rebuilt(freeze)),
    "a late delivery is left to h17": ("unknown", lambda: rebuilt(delay)),
    "an adapter without its second half": ("fault",
        lambda: rebuilt(lambda rows: rows.update(weights=adapter_rows([
            "q.lora_A", "v.lora_A", "v.lora_B"])), **LORA)),
    "an adapter of which the optimizer holds one half is a fault: left to H26": ("ok",
        lambda: rebuilt(lambda rows: rows.update(weights=adapter_rows(["q.lora_A",
            "q.lora_B"], lora_A=0, lora_B=0)), **LORA)),
    "an adapter of which the optimizer holds one half is a fault": ("fault",
        lambda: rebuilt(lambda rows: rows.update(weights=adapter_rows(["q.lora_A",
            "q.lora_B"], lora_A=1, lora_B=0)), **LORA)),
    "a policy that never moves says nothing about its reference": ("ok",
        lambda: rebuilt(still, **LORA)),
    "log probs that are no numbers clear nothing": ("unknown",
        lambda: edited(lambda row: row["step"] > 1 and row.update(trainer=np.full(14, np.nan)))),
    "a trainer that disagrees from the start is left to others": ("unknown",
        lambda: edited(lambda row: row.update(trainer=np.asarray(row["trainer"]) - 3.0), steps=5)),
})  # fmt: skip

test_levels = levels_of(None, {
    "the probe finds a reference that moves along and a frozen adapter": ("fault",
        lambda: lora_probe(moved_gap=0.0)),
    "the probe finds a reference that moves along and a frozen adapter (2)": ("fault",
        lambda: lora_probe(kinds=("lora_A", "lora_A", "lora_B"))),
    "the probe finds a reference that moves along and a frozen adapter (3)": ("fault",
        lambda: lora_probe(held=[True, False])),
})  # fmt: skip
