"""H62: sampler and trainer choose other experts."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, subject

from flatline.hypotheses.base import Level
from flatline.hypotheses.h62_expert_routing import ExpertRouting
from flatline.live.records import Routing

H62 = ExpertRouting()


def probed(differing=(0.1, 0.08, 0.09, 0.12), behind=0.2, others=0.01, **settings):
    rerouted = np.arange(20) % 2 == 0
    found = Routing(
        layers=4,
        differing_R=np.array(differing),
        gap_T=np.where(rerouted, behind, others),
        rerouted_T=rerouted,
    )
    return H62.probe(subject(routing=lambda: found, settings=settings or {"bf16": False}))


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"differing": (0.0,) * 4}, Level.OK),
        ({"differing": (1e-4, 0.0, 2e-4, 0.0)}, Level.OK),
        ({"behind": 1e-3}, Level.NOTE),  # other experts that say the same
        ({"others": 0.19}, Level.NOTE),  # all tokens are off alike: H20's
        ({"behind": 0.04, "bf16": True}, Level.NOTE),
        ({"behind": 0.4, "bf16": True}, Level.SUSPECT),
    ],
)
def test_few_or_harmless_ones_are_no_alarm(changes, level):
    assert probed(**changes).level is level


def test_a_sampler_that_does_not_tell_its_experts_is_asked_to():
    finding = probed(differing=())
    assert finding.level is Level.UNKNOWN and "routed_experts" in finding.needs


test_levels = levels_of(None, {
    "other experts behind which log probs differ": ("suspect", lambda: probed()),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H62.probe, {
    "a model without experts cannot have it": ("ok", lambda: subject(routing=lambda: None)),
})  # fmt: skip
