"""A batch, read: for the recorder, row by row, and for the checkup, as a whole.

A loss takes one dict of padded tensors, by TRL's names: prompts to the right, completions to the
left. Who wrote a token, which carry loss and where a prompt begins is told here and nowhere else.

Dataset columns that are understood, each optional: `problem_id`, `prompt_id` or `id`; `answer`,
`solution`, `gold` or `ground_truth`; `hops` or `n_hops`; `supporting`, the ids of the documents
that the answer needs; and `rollout`, a `flatline.rollout.record.Rollout`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.texts import hashed
from flatline.rollout.record import Author, Rollout

EQUAL = 1e-6
"""Advantages of two tokens that differ by less are one: they were rounded on their way."""
PROMPT_NAMES = ("problem_id", "prompt_id", "id")
"""Columns that may name a prompt, the first that is there counts."""
GOLD_NAMES = (
    "answer",
    "solution",
    "gold",
    "ground_truth",
    "final_answer",
    "gold_answer",
    "correct_answer",
    "expected_answer",
    "reference_answer",
)
"""Columns that may hold the right answer, where the user named none."""


def column(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Any]:
    """Reads the first of these columns that a row has."""

    def read(row: Mapping[str, Any]) -> Any:
        for name in names:
            if (value := row.get(name)) is not None:
                return value
        return None

    return read


own_name = column(PROMPT_NAMES)
hops = column(("hops", "n_hops"))


def episode(row: Mapping[str, Any]) -> Rollout | None:
    """Our own record of what was played for a row, where our engine played it."""
    played = row.get("rollout")
    return played if isinstance(played, Rollout) else None


class Padded:
    """The tensors as numpy arrays on the host, one row per rollout; each is fetched once."""

    def __init__(self, tensors: Mapping[str, Any], pad: int | None = None) -> None:
        self._tensors = tensors
        self._pad = pad
        self._arrays: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return isinstance(self._tensors.get(name), Tensor)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = to_numpy(self._tensors[name])
        return self._arrays[name]

    def prompt(self, row: int) -> slice:
        """Where the prompt stands in its padded row."""
        return slice(self._starts[row], self["prompt_ids"].shape[1])

    def prompt_name(self, row: int, data: Mapping[str, Any]) -> str:
        """The data's own name of a prompt, else a hash of its tokens."""
        own = own_name(data)
        return hashed(self["prompt_ids"][row, self.prompt(row)]) if own is None else str(own)

    def completion(self, row: int, listed: Sequence[int] | None = None) -> slice:
        """Where the completion stands; `listed` are its ids before they were padded and masked."""
        end = self._ends[row]
        if listed is not None and len(listed) != end:
            ids = self["completion_ids"][row, : len(listed)]
            if np.array_equal(ids, listed):
                return slice(0, len(listed))
        return slice(0, end)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each prompt begins."""
        seen = self._seen("prompt")
        width = seen.shape[1]
        first = np.where(seen, np.arange(width), width).min(axis=1, initial=width)
        starts: list[int] = np.where(first < width, first, 0).tolist()
        return starts

    @cached_property
    def _ends(self) -> list[int]:
        """Where each completion ends."""
        seen = self._seen("completion")
        places = np.where(seen, np.arange(1, seen.shape[1] + 1), 0)
        ends: list[int] = places.max(axis=1, initial=0).tolist()
        return ends

    def _seen(self, part: str) -> np.ndarray:
        """Where the tokens are; a mask that hides a whole row does not make it shorter."""
        ids, mask = self[f"{part}_ids"], self[f"{part}_mask"]
        seen: np.ndarray = mask != 0
        hidden = ~seen.any(axis=1)
        if hidden.any():
            seen[hidden] = ids[hidden] != self._pad
        return seen

    @cached_property
    def mask(self) -> np.ndarray:
        """Tokens of the completions, padding left out."""
        mask: np.ndarray = self["completion_mask"] != 0
        return mask

    @cached_property
    def loss_mask(self) -> np.ndarray:
        """The tokens that carry loss; TRL pads the tool mask with 1."""
        return self.mask & (self["tool_mask"] != 0) if "tool_mask" in self else self.mask

    @cached_property
    def advantage(self) -> np.ndarray:
        """Of each rollout. Where tokens have their own, the mean of those that carry loss: what
        stands on padding or on a tool's output moves nothing. NaN where none does."""
        given, mask = self["advantages"], self.loss_mask
        if given.ndim == 1:
            return given
        tokens = mask.sum(axis=1)
        total = np.where(mask, given, 0.0).sum(axis=1)
        return np.where(tokens > 0, total / np.maximum(tokens, 1), np.nan)

    @property
    def token_advantage(self) -> np.ndarray:
        """Of every token."""
        given = self["advantages"]
        return np.broadcast_to(given if given.ndim == 2 else given[:, None], self.mask.shape)

    @cached_property
    def of_tokens(self) -> bool:
        """Whether tokens of one rollout that carry loss have different advantages."""
        if self["advantages"].ndim == 1:
            return False
        low, high = (
            np.where(self.loss_mask, self.token_advantage, end) for end in (np.inf, -np.inf)
        )
        some = self.loss_mask.any(axis=1)
        spread = high.max(axis=1, initial=-np.inf) - low.min(axis=1, initial=np.inf)
        return bool((some & (spread > EQUAL)).any())

    def authors(self, row: int, where: slice, played: Rollout | None) -> np.ndarray | None:
        """Who wrote each token: as a loop says, by the rollout's record, or by the tool mask."""
        if "authors" in self:
            return self.tokens("authors", row, where)
        if played is not None and len(played.authors) == where.stop:
            return np.frombuffer(bytearray(played.authors), dtype=np.uint8)
        mask = self.tokens("tool_mask", row, where)
        if mask is None:
            return np.full(where.stop, Author.MODEL, dtype=np.uint8)
        if not mask.any():  # TRL blanks the mask of what it leaves out of the loss
            return None
        return np.where(mask != 0, np.uint8(Author.MODEL), np.uint8(Author.TOOL))

    def tokens(self, name: str, row: int, where: slice) -> np.ndarray | None:
        return self[name][row, where] if name in self else None


@dataclass(slots=True)
class Drawn:
    """One rollout as its sampler had it, over all its turns."""

    prompt_ids: np.ndarray
    ids: np.ndarray
    """What was drawn, with what was put between turns."""
    logps: np.ndarray
    """NaN where nothing was drawn."""

    def goes_on_in(self, context: np.ndarray) -> bool:
        """Whether another turn may have been asked for with this context."""
        so_far = np.concatenate([self.prompt_ids, self.ids])
        return np.array_equal(context[: len(so_far)], so_far)

    def go_on(self, context: np.ndarray, ids: np.ndarray, logps: np.ndarray) -> None:
        """Add a turn."""
        between = context[len(self.prompt_ids) + len(self.ids) :]
        unknown = np.full(len(between), np.nan, dtype=np.float32)
        self.ids = np.concatenate([self.ids, between, ids])
        self.logps = np.concatenate([self.logps, unknown, logps])

    def logps_at(self, tokens: int) -> np.ndarray:
        """Of the first so many places, NaN behind the last: as TRL puts the log-probs of a sampler
        beside what it trains, be it the same ids or not."""
        known = np.full(tokens, np.nan, dtype=np.float32)
        known[: len(self.logps)] = self.logps[:tokens]
        return known

    def ids_beside(self, ids: np.ndarray) -> np.ndarray:
        """What was drawn in place of a completion; one that ends earlier was cut, not changed."""
        return ids if np.array_equal(self.ids[: len(ids)], ids) else self.ids


def to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.cpu().numpy()
