"""Rollouts of verifiers laid out as TRL lays them out."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatline.live.verifiers.played import played


class Sizes(NamedTuple):
    """Of one rollout, as the trainer has it."""

    prompt: int
    completion: int


class Apart:
    """Rows of prompt and completion in one, laid out as TRL lays them out: padded prompts to the
    right, completions to the left."""

    def __init__(self, sizes: Sequence[Sizes], width: int) -> None:
        # What is longer than `max_seq_len` was cut at its front.
        self._cuts = [max(0, size.prompt + size.completion - width) for size in sizes]
        self._sizes = [
            Sizes(size.prompt - cut, size.completion)
            for size, cut in zip(sizes, self._cuts, strict=True)
        ]
        self._before = max(size.prompt for size in self._sizes)
        self._after = max(size.completion for size in self._sizes)

    def ids(self, rows_BL: Tensor) -> dict[str, Tensor]:
        ones_BL = torch.ones_like(rows_BL)
        return {
            "prompt_ids": self.whole(rows_BL)[:, : self._before],
            "prompt_mask": self.whole(ones_BL)[:, : self._before],
            "completion_ids": self.completions(rows_BL),
            "completion_mask": self.completions(ones_BL),
        }

    def whole(self, rows_BL: Tensor) -> Tensor:
        made = rows_BL.new_zeros((len(self._sizes), self._before + self._after))
        for at, size in enumerate(self._sizes):
            start = self._before - size.prompt
            length = size.prompt + size.completion
            made[at, start : start + length] = rows_BL[at, :length]
        return made

    def completions(self, rows_BL: Tensor, *, shift: int = 0) -> Tensor:
        """`shift` is 1 where the first column belongs to the second token."""
        made = rows_BL.new_zeros((len(self._sizes), self._after))
        for at, size in enumerate(self._sizes):
            start = size.prompt - shift
            made[at, : size.completion] = rows_BL[at, start : start + size.completion]
        return made


def laid_out(found: Any) -> dict[str, Tensor]:
    """What the environment made of a batch, padded."""
    prompts = [list(ids) for ids in found.prompt_ids]
    completions = [list(ids) for ids in found.completion_ids]
    return {
        "prompt_ids": _padded(prompts, left=True),
        "prompt_mask": _padded([[1] * len(ids) for ids in prompts], left=True),
        "completion_ids": _padded(completions),
        "completion_mask": _padded([[1] * len(ids) for ids in completions]),
        "tool_mask": _padded([list(mask) for mask in found.completion_mask]),
        "sampling_per_token_logps": _padded(found.completion_logprobs).float(),
    }


def _padded(rows: Sequence[Sequence[float]], *, left: bool = False) -> Tensor:
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]
    return torch.tensor(
        [[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, fill, strict=True)]
    )


def row_of(row: Mapping[str, Any], state: Any) -> dict[str, Any]:
    """A row of the dataset with what its `info` holds and, where it is known, its episode."""
    info = row.get("info")
    own = {**row, **(info if isinstance(info, Mapping) else {})}
    episode = None if state is None else played(state, str(own.get("problem_id", "")))
    return own if episode is None else {**own, "rollout": episode}
