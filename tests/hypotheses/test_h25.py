"""H25: updates are rounded away."""

import numpy as np
import pytest
from tests.hypotheses.edited import subject
from tests.traces import healthy_rows, healthy_trace, run_facts

from flatline.errors import NotRecorded
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
    finding = H25.sign(changing(lambda step: min(1.0, share + 0.01 * (step % 3 - 1))))
    assert finding.level is level
    assert "bfloat16" in finding.text


def test_three_equal_shares_are_no_knowledge_of_their_spread():
    assert H25.sign(changing(lambda _: 0.7)).level is Level.OK


@pytest.mark.parametrize(
    ("other", "level"),
    [
        ({}, Level.NOTE),
        ({"gain": 0.0}, Level.SUSPECT),
        ({"name": "layers.{}.lora_B.weight"}, Level.SUSPECT),
        ({"dtype": "float32"}, Level.SUSPECT),
    ],
)
def test_full_fine_tuning_in_half_precision_is_noted_while_the_reward_rises(other, level):
    rising = {"steps": 20, "gain": 0.4, **other}
    assert H25.sign(changing(lambda _: 0.1, **rising)).level is level


def test_the_last_third_counts_since_updates_are_lost_as_weights_grow():
    assert H25.sign(changing(lambda step: 1.0 if step < 6 else 0.1)).level is Level.SUSPECT


def test_tensors_that_never_move_and_embeddings_are_others_business():
    with pytest.raises(NotRecorded):
        rows = healthy_rows(steps=3)
        for row in rows["weights"]:
            del row["changed_share"]
        H25.sign(Trace.from_rows(run=run_facts(), **rows))
    assert H25.sign(changing(lambda _: 0.0)).level is Level.UNKNOWN
    assert H25.sign(changing(lambda _: 0.1, name="embed_tokens.{}")).level is Level.UNKNOWN


def test_a_healthy_run_changes_everything():
    assert H25.sign(healthy_trace(steps=4)).level is Level.OK


def test_the_probe_looks_at_one_step():
    assert probed([1.0, 1.0]).level is Level.OK
    assert probed([0.2, 0.1]).level is Level.SUSPECT
    assert probed([0.0, 0.0]).level is Level.UNKNOWN
    assert "nothing can be lost" in probed([1.0], fresh=True).text
