"""A precision that the launcher and the run disagree on is an error before the first step."""

from types import SimpleNamespace

import pytest

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.training.trainer import _refuse_other_precision


def launched(precision, *, deepspeed=True):
    accelerator = SimpleNamespace(mixed_precision=precision)
    return SimpleNamespace(is_deepspeed_enabled=deepspeed, accelerator=accelerator)


@pytest.mark.parametrize(
    ("precision", "bf16", "typed"),
    [("bf16", False, "Type `--bf16`"), ("no", True, "--mixed_precision bf16")],
)
def test_deepspeed_in_another_precision_is_refused_with_what_to_type(precision, bf16, typed):
    with pytest.raises(ConfigError, match=f"(?s)mixed_precision: {precision}.*{typed}"):
        _refuse_other_precision(launched(precision), RunConfig(task="musique", bf16=bf16))


@pytest.mark.parametrize(
    "trainer", [launched("bf16"), launched("no", deepspeed=False)], ids=["agrees", "no deepspeed"]
)
def test_what_agrees_and_what_is_not_deepspeed_may_run(trainer):
    _refuse_other_precision(trainer, RunConfig(task="musique", bf16=True))
