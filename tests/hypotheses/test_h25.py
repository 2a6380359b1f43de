"""H25: updates are rounded away."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h25_rounded_updates import RoundedUpdates
from flatline.trace import Trace

H25 = RoundedUpdates()


def changing(share, *, name="layers.{}.weight", steps=9, gain=0.0, dtype="bfloat16"):
    rows = healthy_rows(steps=steps, gain=gain)
    for row in rows["weights"]:
        row["name"] = name.format(row["name"].split(".")[1])
        row |= {"changed_share": share(row["step"]), "dtype": dtype}
    return Trace.from_rows(run=run_facts(), **rows)


def probed(shares, *, fresh=False, rate=1e-4):
    shares = np.array(shares)
    names = tuple(f"layers.{i}.weight" for i in range(len(shares)))
    census = subject(
        names=names,
        norms=np.ones(len(shares)),
        lora_untrained=fresh,
        sizes=np.full(len(shares), 64),
    )
    step = subject(gradients=census, changed_share_of=shares, learning_rate=rate)
    return H25.probe(subject(one_step=lambda: step))


@pytest.mark.parametrize(
    ("share", "level"), [(1.0, Level.OK), (0.7, Level.NOTE), (0.16, Level.SUSPECT)]
)
def test_the_share_of_elements_that_a_step_changes_decides(share, level):
    assert H25.sign(changing(lambda step: min(1.0, share + 0.01 * (step % 3 - 1)))).level is level


@pytest.mark.parametrize(("other", "level"), [
    ({}, Level.NOTE), ({"gain": 0.0}, Level.SUSPECT),
    ({"name": "layers.{}.lora_B.weight"}, Level.SUSPECT),
    ({"dtype": "float32"}, Level.SUSPECT),
])  # fmt: skip
def test_full_fine_tuning_in_half_precision_is_noted_while_the_reward_rises(other, level):
    assert H25.sign(changing(lambda _: 0.1, **{"steps": 20, "gain": 0.4, **other})).level is level


test_levels_of_the_sign = levels_of(H25.sign, {
    "three equal shares are no knowledge of their spread": ("ok", lambda: changing(lambda _: 0.7)),
    "the last third counts since updates are lost as weights grow": ("suspect",
        lambda: changing(lambda step: 1.0 if step < 6 else 0.1)),
    "tensors that never move and embeddings are others business": ("unknown",
        lambda: changing(lambda _: 0.0)),
    "tensors that never move and embeddings are others business (2)": ("unknown",
        lambda: changing(lambda _: 0.1, name="embed_tokens.{}")),
})  # fmt: skip

test_levels = levels_of(None, {
    "the probe looks at one step": ("ok", lambda: probed([1.0, 1.0])),
    "the probe looks at one step (2)": ("suspect", lambda: probed([0.2, 0.1])),
    "the probe looks at one step (3)": ("unknown", lambda: probed([0.0, 0.0])),
    "an adapter that has not begun loses nothing": ("ok", lambda: probed([1.0], fresh=True)),
})  # fmt: skip
