"""A checkup that its own tried step asks for again."""

import pytest
from torch.torch_version import TorchVersion

from flatline.errors import ConfigError
from flatline.live.trl.begun import once


class Whole:
    """One process with whole weights."""


def test_a_callback_that_asks_for_a_checkup_at_every_step_is_not_answered_inside_one():
    trainer = Whole()
    with pytest.raises(ConfigError, match="already running"):
        once(trainer, lambda: once(trainer, lambda: "never"))
    assert once(trainer, lambda: "again") == "again"


class Split(Whole):
    is_fsdp_enabled = True


def test_fsdp_with_a_torch_after_which_training_would_break_is_refused_before_anything_is_tried(
    monkeypatch,
):
    monkeypatch.setattr("torch.__version__", TorchVersion("2.11.0+cu130"))
    with pytest.raises(ConfigError, match=r"needs 2\.13"):
        once(Split(), lambda: pytest.fail("looked"))
