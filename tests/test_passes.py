"""Plays of like length share a pass; what is learnt from them is the same."""

import pytest
import torch

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.live.inputs import by_length, score_by_length
from flatline.training.trainer import build

LENGTHS = [3, 9, 1, 7, 2, 8]


def passes_of(lengths, size):
    """Passes as TRL splits them: padded to the longest of all."""
    width = max(lengths)
    seen = torch.tensor([[int(i < n) for i in range(width)] for n in lengths])
    rows = torch.arange(len(lengths))
    whole = {
        "prompt_ids": torch.full((len(lengths), 4), 5),
        "prompt_mask": torch.tensor([[0, 1, 1, 1]] * len(lengths)),
        "completion_ids": (rows[:, None] + 10) * seen,
        "completion_mask": seen,
        "advantages": rows.float(),
    }
    shared = {"num_items_in_batch": torch.tensor(30), "old_per_token_logps": None}
    return [
        {**{name: value[i : i + size] for name, value in whole.items()}, **shared}
        for i in range(0, len(lengths), size)
    ]


def test_every_play_is_in_one_pass_with_what_belongs_to_it():
    sorted_ = by_length(passes_of(LENGTHS, 2))

    assert [one["completion_mask"].sum(1).tolist() for one in sorted_] == [[9, 8], [7, 3], [2, 1]]
    for one in sorted_:
        ids, mine = one["completion_ids"], one["advantages"].long()
        assert (ids.amax(1) - 10).tolist() == mine.tolist()
        assert one["num_items_in_batch"] == 30
        assert one["old_per_token_logps"] is None
    assert sorted(torch.cat([one["advantages"] for one in sorted_]).tolist()) == [0, 1, 2, 3, 4, 5]


def test_a_pass_is_as_wide_as_its_longest_play_and_its_longest_prompt():
    sorted_ = by_length(passes_of(LENGTHS, 2))

    assert [one["completion_ids"].shape[1] for one in sorted_] == [9, 7, 2]
    assert [one["prompt_ids"].shape[1] for one in sorted_] == [3, 3, 3]


def test_scores_come_back_in_the_order_of_the_plays():
    one = passes_of(LENGTHS, 6)[0]
    ids = torch.cat([one["prompt_ids"], one["completion_ids"]], dim=1)
    seen = torch.cat([one["prompt_mask"], one["completion_mask"]], dim=1)
    widths = []

    def score(ids, seen, keep):
        widths.append(ids.shape[1])
        return (ids * seen)[:, -keep:].float()

    found = score_by_length(score, ids, seen, keep=9, size=2)

    assert found.tolist() == (one["completion_ids"] * one["completion_mask"]).tolist()
    assert widths == [3 + 9, 3 + 7, 3 + 2], "without the column that no prompt reaches"


def setup(folder, passes, steps=2, **changes):
    return RunConfig(
        output_dir=str(folder),
        datasets="lab,,train[:24]",
        batch_size=8,
        gradient_accumulation_steps=4,
        kl_beta=0.04,
        max_steps=steps,
        eval_limit=0,
        passes=passes,
        **changes,
    )


def trained(config):
    """What was logged of each step."""
    built = build(config)
    built.trainer.train()
    return [line for line in built.trainer.state.log_history if "kl" in line]


@pytest.fixture(scope="module")
def sorted_run(tmp_path_factory):
    return trained(setup(tmp_path_factory.mktemp("by-length"), "by-length"))


def same_up_to_rounding(sorted_, plain):
    """The plays of a step are summed in another order."""
    assert len(plain) == len(sorted_) > 0
    for name in ("reward", "grad_norm"):
        assert [line[name] for line in sorted_] == pytest.approx(
            [line[name] for line in plain], rel=1e-3, abs=1e-5
        )


def test_a_run_learns_the_same_with_passes_by_length(tmp_path, sorted_run):
    same_up_to_rounding(sorted_run, trained(setup(tmp_path, "shuffled")))


def test_with_passes_by_length_what_is_sampled_is_what_is_trained(sorted_run):
    assert all(line["debug/logprob_gap_max"] <= 1e-4 for line in sorted_run)
    assert sorted_run[0]["kl"] <= 1e-9 < sorted_run[1]["kl"]


def test_a_loss_that_averages_inside_a_pass_is_refused():
    with pytest.raises(ConfigError, match="bnpo averages over the tokens of a pass"):
        RunConfig(passes="by-length", loss_type="bnpo")
