"""What a batch happens not to hold is put into it, and what it holds is left alone."""

import numpy as np
import torch

from flatline.live.batch import Drawn
from flatline.live.measure.played import Generated, Played
from flatline.live.trl.departure.sampled import KEPT, judge_kept
from flatline.live.trl.departure.varied import SHORTER, varied_advantages, varied_rows
from flatline.spec import Asked

EOS = 0
PROMPT = list(range(1, 10))


def played(prompts, completions, *more, drawn=()):
    inputs = {
        "completion_ids": torch.tensor(completions),
        "completion_mask": torch.ones(len(completions), len(completions[0])).long(),
    }
    rows = [{"prompt": "?"}] * len(prompts)
    found = Played(rows, inputs, Generated((prompts, completions, *more), {}))
    found.drawn = drawn
    return found


def asked(**told):
    settings = {"group": 2, "passes": 1, "rows_in_pass": 2, "longest": 9, **told}
    return Asked(**settings)


def test_prompts_of_one_length_get_padding_and_completions_an_end_that_was_cut():
    masks = [[1, 1, 1], [1, 0, 1]]
    batch = played([PROMPT, PROMPT], [[5, 6, EOS], [7, 8, EOS]], masks)
    prompts, completions, own = varied_rows(asked(), batch, frozenset({EOS})).generated.result
    assert prompts == [PROMPT[SHORTER:], PROMPT]
    assert completions == [[5, 6, EOS], [7, 8]]
    assert own == [[1, 1, 1], [1, 0]]
    assert batch.generated.result[0] == [PROMPT, PROMPT]


def test_a_batch_that_is_uneven_by_itself_is_left_as_it_is():
    batch = played([PROMPT, PROMPT[1:]], [[5, 6, EOS], [7, 8, 9]])
    batch.generated.result[1][1].pop()
    assert varied_rows(asked(), batch, frozenset({EOS})).generated.result == batch.generated.result


def test_advantages_have_both_signs_and_sizes_around_one():
    given_B = varied_advantages(asked(group=8), torch.zeros(16), [0.0])
    assert len({round(one, 4) for one in given_B.tolist()}) == 16
    for sign in (1, -1):
        sizes = given_B[given_B * sign > 0].abs()
        assert float(sizes.min()) < 1 < float(sizes.max())
    assert float(varied_advantages(asked(scale="none"), given_B, [0.2]).abs().max()) < 0.21


def test_what_was_drawn_for_a_row_must_be_kept_to_its_end():
    full = [5, 6, EOS]
    drawn = [Drawn(np.array(PROMPT), np.array(full), np.zeros(3, dtype=np.float32))] * 2

    def judged(kept, longest=9, own=False):
        batch = played([PROMPT, PROMPT], [full, full], drawn=drawn)
        batch.generated.result[1][1] = kept
        return judge_kept(batch, {EOS}, longest, own)

    assert judged(full) is None
    assert judged([5, 6], longest=2) is None
    assert judged([5], own=True) is None and judged([6], own=True).departs
    short = judged([5])
    assert short.text.startswith(KEPT) and "has 1 tokens, 3 were sampled" in short.text
