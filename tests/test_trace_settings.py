"""What the settings of a run say about its precision."""

import pytest

from flatline.trace.importers.settings import setting_names, settings_of
from flatline.trace.settings import is_half, rounding


@pytest.mark.parametrize(
    ("settings", "half"),
    [
        ({"bf16": False, "precision": "float16"}, True),
        ({"bf16": False, "precision": "bfloat16"}, True),
        ({"bf16": False, "precision": "tf32"}, True),
        ({"bf16": False, "precision": "float32"}, False),
        ({"bf16": True}, True),
        ({"bf16": False}, False),
        ({"bf16": None, "precision": None}, None),
        ({}, None),
    ],
)
def test_16_bits_are_16_bits_whatever_they_are_called(settings, half):
    assert is_half(settings) is half


@pytest.mark.parametrize(
    ("config", "half"),
    [
        ({"bf16": False, "fp16": True}, True),
        ({"bf16": False, "fp16": False}, False),
        ({"bf16": True, "fp16": False}, True),
        ({"bf16": False, "fp16": False, "tf32": True}, True),
        ({"policy": {"precision": "float16"}}, True),
        ({"policy": {"precision": "float32"}}, False),
        ({}, None),
    ],
)
def test_the_config_of_a_log_says_it_in_its_own_words(config, half):
    assert is_half(settings_of(config)) is half


@pytest.mark.parametrize(
    ("settings", "nats"),
    [
        ({"precision": "float32"}, 1e-3),
        ({"bf16": False}, 1e-3),
        ({"precision": "tf32"}, 2**-4),
        ({"precision": "float16"}, 2**-4),
        ({"precision": "bfloat16"}, 0.5),
        ({"bf16": True}, 0.5),
        ({}, 0.5),
    ],
)
def test_rounding_explains_a_few_spacings_of_a_logit_of_the_precision(settings, nats):
    assert rounding(settings) == nats


def test_the_names_of_a_configuration_are_kept_for_advice():
    verl = {"actor_rollout_ref": {"actor": {"kl_loss_coef": 0.1}}, "data": {"seed": 1}}
    assert setting_names(verl) == {"beta": "actor_rollout_ref.actor.kl_loss_coef"}
    assert setting_names({"beta": 0.04}) == {"beta": "beta"}
