"""Faults that only large runs have: each does what its defect does, is found, and has a healthy
twin in which the same code does it right."""

import pytest
import torch

from flatline.diagnosis.checkup import subject_of
from flatline.errors import NotRecorded
from flatline.hypotheses import find as hypothesis
from flatline.hypotheses.base import ALARMS, Level
from flatline.live.measure.routing import listening, routers_of
from flatline.remedies import remedied
from flatline.training.trainer import build
from tests.test_faults import first_batch, gap, move_adapter, tiny

# -- packed rows ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[0, 1], ids=["borders kept", "borders lost"])
def packing(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    built = build(tiny(folder, fault=f"packed-unmasked:{request.param}"))
    return request.param, built


def test_packed_rollouts_are_scored_as_alone_only_where_borders_are_kept(packing):
    lost, built = packing
    found = gap(built, first_batch(built)[1])
    assert found > 0.1 if lost else found < 1e-5


def test_a_rollout_changes_with_its_neighbours_only_where_borders_are_lost(packing):
    lost, built = packing
    found = hypothesis("H61").probe(subject_of(built))
    assert found.level is (Level.FAULT if lost else Level.OK)


def test_scoring_that_draws_is_not_taken_for_neighbours_that_are_seen(tmp_path):
    built = build(tiny(tmp_path, fault="dropout-in-scoring:0.2"))
    with pytest.raises(NotRecorded, match="come out the same twice"):
        hypothesis("H61").probe(subject_of(built))


def test_lost_borders_are_named_in_the_first_batch_already(packing):
    lost, built = packing
    subject = subject_of(built)
    assert (hypothesis("H61").sign(subject.trace).level in ALARMS) is bool(lost)


# -- shards of a row --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[0, 1], ids=["keys exchanged", "keys lost"])
def sharding(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    return request.param, build(tiny(folder, fault=f"shards-apart:{request.param}"))


def test_shards_are_scored_as_whole_rows_only_where_they_exchange_keys(sharding):
    lost, built = sharding
    found = gap(built, first_batch(built)[1])
    assert found > 0.1 if lost else found < 1e-5


def test_a_change_stops_at_a_border_only_where_no_keys_cross_it(sharding):
    lost, built = sharding
    found = hypothesis("H64").probe(subject_of(built))
    assert found.level is (Level.FAULT if lost else Level.OK)


# -- a quantised sampler ----------------------------------------------------------------------


def test_a_requantised_sampler_begins_close_and_loses_what_small_updates_change(tmp_path):
    built = build(tiny(tmp_path, fault="sampler-requantised", lora_targets="all-linear"))
    begun = gap(built, first_batch(built)[1])
    assert 1e-4 < begun < 5e-3
    for step in range(1, 9):
        move_adapter(built, 1e-3)
        built.trainer.state.global_step = step
        _, batch = first_batch(built)
    assert gap(built, batch) > 2 * begun


def test_a_sampler_that_is_rounded_anew_from_all_weights_does_not_drift(tmp_path):
    built = build(tiny(tmp_path, fault="sampler-rounded:6", lora_targets="all-linear"))
    begun = gap(built, first_batch(built)[1])
    for _ in range(8):
        move_adapter(built, 1e-3)
    assert 1e-4 < begun < 5e-3 and gap(built, first_batch(built)[1]) < 2 * begun


def test_a_sampler_of_more_digits_follows(tmp_path):
    built = build(tiny(tmp_path, fault="sampler-requantised:16", lora_targets="all-linear"))
    for _ in range(3):
        move_adapter(built, 1e-3)
        _, batch = first_batch(built)
    assert gap(built, batch) < 1e-3


# -- experts ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[23, 1], ids=["routers alike", "a coarse router"])
def routing(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("routed")
    return request.param, build(tiny(folder, fault=f"experts-rerouted:{request.param}"))


def test_only_a_coarse_router_of_the_sampler_parts_it_from_the_trainer(routing):
    bits, built = routing
    found = gap(built, first_batch(built)[1])
    assert found > 5e-3 if bits == 1 else found < 1e-5


def test_other_experts_are_named_where_the_sampler_tells_its_own(routing):
    bits, built = routing
    subject = subject_of(built)
    finding = hypothesis("H62").probe(subject)
    assert finding.level is (Level.SUSPECT if bits == 1 else Level.OK)
    assert bool(subject.routing().differing_R.any()) is (bits == 1)


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe", "Olmoe"])
def test_the_routers_of_common_models_are_found_and_heard(family):
    import transformers

    config = getattr(transformers, f"{family}Config")(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    routers = routers_of(model)
    with listening(routers, config) as chosen:
        model(input_ids=torch.arange(6)[None])
    assert len(routers) == 2
    assert [tuple(one.shape) for one in chosen] == [(6, 2), (6, 2)]


# -- remedies ---------------------------------------------------------------------------------


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
