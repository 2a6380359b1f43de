"""H67 another-image; live trainers with images are in tests/test_trl_breadth.py."""

from types import SimpleNamespace

import pytest

from flatline.hypotheses.base import Level
from flatline.hypotheses.h67_another_image import AnotherImage
from flatline.live.records import ImageGaps

H = AnotherImage()


def found(seen=0.5, own=1e-6, others=(0.5, 0.6)):
    gaps = ImageGaps(seen=seen, own=own, others=others)
    return H.probe(SimpleNamespace(image_gaps=lambda: gaps))


def test_the_image_of_another_prompt_that_fits_is_a_fault():
    told = found(own=0.5, others=(0.4, 1e-6))
    assert told.level is Level.FAULT and "2 further on" in told.evidence[0].text


def test_images_that_nobody_looks_at_are_a_fault():
    assert found(seen=0.0).level is Level.FAULT


def test_its_own_image_is_fine():
    assert found().level is Level.OK


@pytest.mark.parametrize("others", [(), (0.4, 0.3)])
def test_a_gap_that_no_other_image_closes_is_left_to_others(others):
    told = found(own=0.5, others=others)
    assert told.level is Level.UNKNOWN and "H20" in told.text


def test_a_sampler_without_log_probs_cannot_be_told():
    assert found(own=None, others=()).level is Level.UNKNOWN


def test_a_model_of_text_has_no_images():
    assert "Does not apply" in H.probe(SimpleNamespace(image_gaps=lambda: None)).text
