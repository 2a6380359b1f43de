"""One reading of a padded batch, for what is recorded and for what is checked."""

import numpy as np
import torch

from flatline.live.batch import Padded
from flatline.live.measure.played import Played, batch_of
from flatline.rollout.record import Author

PAD = 0


def inputs(**changes):
    """Two rollouts: prompts of one and two tokens, completions of three and one."""
    found = {
        "prompt_ids": torch.tensor([[PAD, 5], [6, 7]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 3], [4, PAD, PAD]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]]),
        "advantages": torch.tensor([1.0, -1.0]),
    }
    return found | changes


def test_padding_carries_no_loss_though_trl_pads_the_tool_mask_with_ones():
    assert Padded(inputs()).loss_mask.tolist() == [[True, False, True], [True, False, False]]


def test_a_mask_that_hides_a_prompt_does_not_make_it_shorter():
    hidden = Padded(inputs(prompt_mask=torch.zeros(2, 2, dtype=torch.long)), pad=PAD)
    assert [hidden.prompt(row) for row in (0, 1)] == [slice(1, 2), slice(0, 2)]


def test_prompts_without_a_name_are_named_by_all_their_tokens():
    """A mask with a hole in it tells the same prompt, not another."""
    whole, holed = Padded(inputs()), Padded(inputs(prompt_mask=torch.tensor([[0, 1], [1, 0]])))
    assert whole.prompt_name(1, {}) == holed.prompt_name(1, {}) != whole.prompt_name(0, {})
    assert whole.prompt_name(0, {"problem_id": 9}) == "9"


def test_the_end_of_a_completion_is_where_its_own_ids_end_even_if_they_are_masked():
    masked = Padded(inputs(completion_mask=torch.zeros(2, 3, dtype=torch.long)), pad=PAD)
    assert masked.completion(0, [1, 2]) == slice(0, 2)
    assert masked.completion(1) == slice(0, 1)


def test_advantages_of_tokens_count_where_there_is_a_loss():
    per_token = torch.tensor([[1.0, 100.0, 3.0], [-1.0, 100.0, 100.0]])
    batch = Padded(inputs(advantages=per_token))
    assert batch.advantage.tolist() == [2.0, -1.0]
    assert Padded(inputs()).token_advantage.tolist() == [[1.0] * 3, [-1.0] * 3]


def test_the_authors_are_those_that_a_loop_tells_before_those_of_the_tool_mask():
    first = slice(0, 3)
    told = torch.full((2, 3), int(Author.TEMPLATE))
    assert Padded(inputs(authors=told)).authors(0, first, None).tolist() == [Author.TEMPLATE] * 3
    by_mask = [Author.MODEL, Author.TOOL, Author.MODEL]
    assert Padded(inputs()).authors(0, first, None).tolist() == by_mask
    blank = Padded(inputs(tool_mask=torch.zeros(2, 3)))
    assert blank.authors(0, first, None) is None, "TRL blanks what it leaves out of the loss"


def test_a_checkup_reads_what_the_recorder_reads():
    played = Played([{"id": "a"}, {"id": "b"}], inputs())
    found = batch_of(played, torch.zeros(2, 3), 1)
    assert found.prompt_id_R.tolist() == ["a", "b"]
    assert found.rollout_T.tolist() == [0, 0, 0, 1] and found.position_T.tolist() == [0, 1, 2, 0]
    assert found.ids_T.tolist() == [1, 2, 3, 4]
    assert found.trained_T.tolist() == [True, False, True, True]
    read = np.concatenate(
        [played.batch.authors(r, played.batch.completion(r), None) for r in (0, 1)]
    )
    assert found.author_T.tolist() == read.tolist()
