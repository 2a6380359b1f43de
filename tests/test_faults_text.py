"""Texts of planted faults: whose they are, and what is left without them."""

import pytest

from flatline.errors import ConfigError
from flatline.faults import FAULTS, PRESETS, belonging, without

PRESET = "verifiers-0.1.3"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_nothing_is_left_of_a_single_fault_without_its_hypothesis(fault):
    assert without(fault.name, fault.hypothesis) is None
    assert belonging(fault.name, fault.hypothesis) == [fault.name]


def test_other_faults_keep_their_strength_and_their_order():
    text = "mask-as-attention:0.5 + groups-mixed+ kl-heavy:2"
    assert without(text, "H33") == "mask-as-attention:0.5+kl-heavy:2"
    assert without(text, "H09") == "groups-mixed+kl-heavy:2"


def test_a_preset_is_written_out_and_loses_only_the_hypothesis_part():
    assert without(PRESET, "H09") == PRESETS[PRESET].removeprefix("mask-as-attention+")
    assert without(PRESET, "H10") == "mask-as-attention+sorted-with-hop-factor"
    assert without(f"{PRESET}+kl-heavy", "H03") == PRESETS[PRESET]


def test_an_unknown_fault_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="mask-as-attention"):
        without("mask-as-atention", "H09")
