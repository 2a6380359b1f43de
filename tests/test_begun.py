"""A checkup that its own tried step asks for again."""

import pytest

from flatline.errors import ConfigError
from flatline.live.trl.begun import once


class Whole:
    """One process with whole weights."""


def test_a_callback_that_asks_for_a_checkup_at_every_step_is_not_answered_inside_one():
    trainer = Whole()
    with pytest.raises(ConfigError, match="looked at already"):
        once(trainer, lambda: once(trainer, lambda: "never"))
    assert once(trainer, lambda: "again") == "again"
