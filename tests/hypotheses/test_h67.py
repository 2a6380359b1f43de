"""H67 another-image; live trainers with images are in tests/test_trl_breadth.py."""

from types import SimpleNamespace

import pytest
from tests.hypotheses.edited import levels_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h67_another_image import AnotherImage
from flatline.live.records import ImageGaps

H = AnotherImage()


def found(seen=0.5, own=1e-6, others=(0.5, 0.6)):
    gaps = ImageGaps(seen=seen, own=own, others=others)
    return H.probe(SimpleNamespace(image_gaps=lambda: gaps))


@pytest.mark.parametrize("others", [(), (0.4, 0.3)])
def test_a_gap_that_no_other_image_closes_is_left_to_others(others):
    assert found(own=0.5, others=others).level is Level.UNKNOWN


test_levels = levels_of(None, {
    "the image of another prompt that fits": ("fault", lambda: found(own=0.5, others=(0.4, 1e-6))),
    "images that nobody looks at": ("fault", lambda: found(seen=0.0)),
    "its own image": ("ok", lambda: found()),
    "a sampler without log probs": ("unknown", lambda: found(own=None, others=())),
})  # fmt: skip


test_levels_of_the_probe = levels_of(H.probe, {
    "a model of text has no images": ("ok", lambda: SimpleNamespace(image_gaps=lambda: None)),
})  # fmt: skip
