"""H16: a special token stands twice."""

from dataclasses import replace

import numpy as np
from tests.hypotheses.edited import levels_of, subject
from tests.tiny import tiny_model, tokenizer_with
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h16_special_tokens import SpecialTokens
from flatline.live.measure.tokenizer import tokenizer_fit
from flatline.trace import Trace

H16 = SpecialTokens()


def prompts(edit):
    rows = healthy_rows(steps=1)
    for row in rows["tokens"]:
        ids = np.array(edit(row))
        row |= {"prompt_ids": ids, "prompt_attended": np.ones(len(ids), np.uint8)}
    return Trace.from_rows(run=run_facts(), **rows)


def probed(tokenizer, *, vocab=300):
    fit = tokenizer_fit(tokenizer, tiny_model(vocab=vocab))
    trace = prompts(lambda _: [1, 2, 3])
    return H16.probe(subject(trace=trace, tokenizer_fit=lambda: fit, unwritable_tokens=dict))


def test_prompts_that_begin_with_a_token_twice_are_a_fault():
    finding = H16.sign(prompts(lambda row: [5, 5, *row["prompt_ids"]]))
    assert finding.level is Level.FAULT and finding.proven


def test_a_tokenizer_with_more_ids_than_the_model_is_a_fault():
    tokenizer = tokenizer_with()
    assert probed(tokenizer, vocab=300).level is Level.OK
    assert probed(tokenizer, vocab=100).level is Level.FAULT


def test_a_tokenizer_that_would_double_the_first_token_is_noted():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tokenizer_with()
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    bos = tokenizer.bos_token, tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    assert probed(tokenizer).level is Level.NOTE


def test_prompts_that_end_with_the_end_of_a_turn_are_a_fault():
    fit = replace(tokenizer_fit(tokenizer_with(), tiny_model(vocab=300)), end=3)

    def ending(ids):
        trace = prompts(lambda _: ids)
        return H16.probe(subject(trace=trace, tokenizer_fit=lambda: fit, unwritable_tokens=dict))

    assert ending([1, 2, 3]).level is Level.FAULT
    assert ending([1, 3, 2]).level is not Level.FAULT


test_levels_of_the_sign = levels_of(H16.sign, {
    "one such prompt is a coincidence": ("ok",
        lambda: prompts(lambda row: [5, 5, 1] if row["rollout"] == 0 else [5, 6, 1])),
    "one such prompt is a coincidence (2)": ("ok", lambda: prompts(lambda _: [5, 6, 6])),
})  # fmt: skip
