"""Faults that only large runs have: each does what its defect does, is found, and has a healthy
twin in which the same code does it right."""

import pytest
import torch

from flatline.diagnosis.checkup import subject_of
from flatline.hypotheses import find as hypothesis
from flatline.hypotheses.base import Level
from flatline.live.measure.routing import listening, routers_of
from flatline.remedies import remedied
from flatline.training.trainer import build
from tests.test_faults import first_batch, gap, move_adapter, tiny


@pytest.mark.parametrize(
    ("fault", "least", "code", "level"),
    [
        ("packed-unmasked:1", 0.1, "H61", Level.FAULT),
        ("packed-unmasked:0", None, "H61", Level.OK),
        ("shards-apart:1", 0.1, "H64", Level.FAULT),
        ("shards-apart:0", None, "H64", Level.OK),
        ("experts-rerouted:1", 5e-3, "H62", Level.SUSPECT),
        ("experts-rerouted:23", None, "H62", Level.OK),
    ],
)
def test_a_fault_parts_sampler_and_trainer_and_is_found_and_its_twin_is_healthy(
    tmp_path, fault, least, code, level
):
    built = build(tiny(tmp_path, fault=fault))
    found = gap(built, first_batch(built)[1])
    assert found > least if least else found < 1e-5
    assert hypothesis(code).probe(subject_of(built)).level is level


@pytest.mark.parametrize(
    ("fault", "drifts"), [("sampler-requantised", 1), ("sampler-rounded:6", 0)]
)
def test_a_sampler_that_is_requantised_loses_small_updates_and_one_rounded_anew_does_not(
    tmp_path, fault, drifts
):
    built = build(tiny(tmp_path, fault=fault, lora_targets="all-linear"))
    begun = gap(built, first_batch(built)[1])
    assert 1e-4 < begun < 5e-3
    for step in range(1, 9):
        move_adapter(built, 1e-3)
        built.trainer.state.global_step = step
        _, batch = first_batch(built)
    assert (gap(built, batch) > 2 * begun) is bool(drifts)


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe", "Olmoe"])
def test_the_routers_of_common_models_are_found_and_heard(family):
    import transformers

    small = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), 16)
    small |= dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 2)
    small |= {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = getattr(transformers, f"{family}Config")(vocab_size=32, decoder_sparse_step=1, **small)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    routers = routers_of(model)
    with listening(routers, config) as chosen:
        model(input_ids=torch.arange(6)[None])
    assert len(routers) == 2
    assert [tuple(one.shape) for one in chosen] == [(6, 2), (6, 2)]


def off_sampled(built, batch) -> float:
    """How far what the loss gets is from what was sampled, on trained tokens."""
    ids, seen = (
        torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], dim=1)
        for name in ("ids", "mask")
    )
    keep = batch["completion_ids"].shape[1]
    logps, *_ = built.trainer._get_per_token_logps_and_entropies(
        built.trainer.model, ids, seen, keep
    )
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    return float((logps - batch["sampling_per_token_logps"]).abs()[mask].mean())


@pytest.mark.parametrize(("fault", "code"), [("packed-unmasked", "H61"), ("shards-apart", "H64")])
def test_what_is_scored_amiss_is_scored_right_under_its_remedy(tmp_path, fault, code):
    built = build(tiny(tmp_path, fault=fault))
    _, batch = first_batch(built)
    assert off_sampled(built, batch) > 0.1
    with remedied(built.trainer, [code]):
        assert off_sampled(built, batch) < 1e-4
