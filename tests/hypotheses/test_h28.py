"""H28: the loss is divided by the wrong number."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h28_loss_normalisation import LossNormalisation
from flatline.live.step_records import Accumulation, ShortStep
from flatline.trace import Trace

H28 = LossNormalisation()


def losses(factor, *, kind="dapo", noise=0.0, **settings):
    """A run whose recorded loss is `factor` times what it should be."""
    rows, rng = healthy_rows(steps=10), np.random.default_rng(0)
    for row in rows["rollouts"]:
        row["trained_tokens"] = int(rng.integers(5, 40))
    for row in rows["steps"][1:]:
        mine = [one for one in rows["rollouts"] if one["step"] == row["step"]]
        total = sum(one["advantage"] * one["trained_tokens"] for one in mine)
        size = 64 * len(mine) if kind == "dr_grpo" else sum(one["trained_tokens"] for one in mine)
        row["loss"] = -factor * total / size + rng.normal(0, noise)
    return Trace.from_rows(run=run_facts(loss_type=kind, beta=0.0, **settings), **rows)


def probed(ratio, kind="grpo"):
    found = Accumulation(passes=(1, 2), norms=(1.0, ratio), cosine=1.0)
    return H28.probe(subject(accumulation=lambda: found, settings={"loss_type": kind}))


@pytest.mark.parametrize("kind", ["dapo", "bnpo", "dr_grpo"])
@pytest.mark.parametrize(
    ("factor", "level"), [(1, Level.OK), (4, Level.SUSPECT), (0.25, Level.SUSPECT)]
)
def test_advantages_and_lengths_say_what_the_loss_must_be(kind, factor, level):
    assert H28.sign(losses(factor, kind=kind)).level is level


@pytest.mark.parametrize(
    "settings", [{"kind": "grpo"}, {"num_iterations": 2}, {"steps_per_generation": 8}]
)
def test_where_they_do_not_it_cannot_be_told(settings):
    assert H28.sign(losses(4, **settings)).level is Level.UNKNOWN


@pytest.mark.parametrize(("ratio", "kind", "level"), [
    (1.0, "grpo", Level.OK), (1.02, "grpo", Level.NOTE), (2.0, "grpo", Level.FAULT),
    (0.5, "dapo", Level.FAULT), (1.2, "bnpo", Level.NOTE),
])  # fmt: skip
def test_the_gradient_must_not_depend_on_the_passes(ratio, kind, level):
    assert probed(ratio, kind).level is level


@pytest.mark.parametrize(("ratio", "steps", "level"), [
    (0.5, 2, Level.SUSPECT), (0.5, 200, Level.NOTE), (1.0, 2, Level.OK),
    (float("nan"), 2, Level.OK),
])  # fmt: skip
def test_the_short_step_at_the_end_of_an_epoch_is_divided_by_its_own_passes(ratio, steps, level):
    short = ShortStep(passes=1, usual=2, steps=steps, ratio=ratio)
    found = Accumulation(passes=(1, 2), norms=(1.0, 1.0), cosine=1.0, short=short)
    finding = H28.probe(subject(accumulation=lambda: found, settings={"loss_type": "grpo"}))
    assert finding.level is level
    assert level is Level.OK or "ends with a step of 1 instead of 2 passes" in finding.text


test_levels_of_the_sign = levels_of(H28.sign, {
    "a loss that other things move": ("unknown", lambda: losses(4, noise=10.0)),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H28.probe, {
    "a batch that cannot be halved": ("unknown",
        lambda: subject(accumulation=lambda: None, settings={})),
})  # fmt: skip
