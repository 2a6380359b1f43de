"""Which rollouts stand for a batch where all of it would only cost."""

import torch

from flatline.live.measure.part_of_batch import few
from flatline.live.measure.played import Played


def played(completion_masks, advantages):
    mask = torch.tensor(completion_masks)
    ones = torch.ones(len(mask), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": torch.ones_like(mask),
        "completion_mask": mask,
        "advantages": torch.tensor(advantages),
    }
    return Played([{} for _ in mask], inputs)


def test_one_of_several_groups_has_a_rollout_without_loss_where_there_is_one():
    whole, cut = [[1, 0]] * 4, [[1, 1]] * 3 + [[0, 0]]
    advantages = [1.0, -1.0, 1.0, -1.0] * 3
    assert few(played(whole * 3, advantages), 4) == list(range(8))
    assert few(played(whole * 2 + cut, advantages), 4) == [0, 1, 2, 3, 8, 9, 10, 11]
    no_signal = [*advantages[:8], 0.0, 0.0, 0.0, 0.0]
    assert few(played(whole * 2 + cut, no_signal), 4) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_single_group_must_be_one_that_learns():
    cut = [[1, 1]] * 7 + [[0, 0]]
    found = few(played([[1, 0]] * 8 + cut, [1.0, -1.0] * 4 + [0.0] * 8), 8)
    assert found == list(range(8))
