"""H12: words of earlier turns are missing from what is trained."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of, rng_of, sampled_otherwise, subject
from tests.tiny import tiny_model, tokenizer_with
from tests.traces import healthy_trace

from flatline.hypotheses.base import Level
from flatline.hypotheses.h10_template_drift import TemplateDrift
from flatline.hypotheses.h11_retokenisation import Retokenisation
from flatline.hypotheses.h12_history_rewritten import HistoryRewritten
from flatline.live.measure.tokenizer import tokenizer_fit

H12 = HistoryRewritten()
DROPS = (
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def with_more(words, at=1):
    """The sampler had some more tokens than are trained."""
    return lambda row: [*row["ids"][:at], *words(row), *row["ids"][at:]]


def thoughts(row):
    return rng_of(row).integers(200, 900, 4)


def test_words_of_the_model_that_are_not_trained_are_a_fault_and_no_other_hypothesis_claims_them():
    trace = sampled_otherwise(ids=with_more(thoughts))
    finding = H12.sign(trace)
    assert finding.level is Level.FAULT and finding.measured == 1.0
    assert TemplateDrift().sign(trace).level is Level.OK
    assert Retokenisation().sign(trace).level is Level.OK


def test_what_a_template_drops_is_the_same_everywhere_and_belongs_to_h10():
    trace = sampled_otherwise(ids=with_more(lambda _: [7, 8, 9], at=4))
    assert H12.sign(trace).level is Level.OK
    assert TemplateDrift().sign(trace).level is Level.FAULT


@pytest.mark.parametrize(("template", "level"), [(None, Level.OK), (DROPS, Level.NOTE)])
def test_a_template_that_drops_thinking_is_noted(template, level):
    tokenizer = tokenizer_with()
    tokenizer.chat_template = template or "{% for m in messages %}{{ m.content }}{% endfor %}"
    looked = subject(
        trace=healthy_trace(steps=1), tokenizer_fit=lambda: tokenizer_fit(tokenizer, tiny_model())
    )
    assert H12.probe(looked).level is level


def test_a_template_that_raises_says_nothing():
    tokenizer = tokenizer_with()
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    looked = subject(
        trace=healthy_trace(steps=1), tokenizer_fit=lambda: tokenizer_fit(tokenizer, tiny_model())
    )
    assert H12.probe(looked).level is Level.OK


test_levels_of_the_sign = levels_of(H12.sign, {
    "other ids for the same length belong to h11": ("ok",
        lambda: sampled_otherwise(ids=lambda row: np.array(row["ids"]) + 1)),
})  # fmt: skip
