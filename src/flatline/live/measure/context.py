"""Replaces a part of what the model was shown, token for token, and scores the completion again."""

from collections.abc import Sequence
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live.inputs import Inputs, select, trimmed
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.protocol import Trainer
from flatline.live.records import ContextEffect
from flatline.rollout.record import Author

Which = Literal["prompt", "tool"]


def context_effect(
    trainer: Trainer,
    played: Played,
    kept: Sequence[int],
    before_BT: Tensor,
    size: int,
    which: Which,
) -> ContextEffect:
    """Change of the trained tokens that come after the replaced ones, in some of the rollouts.
    `before_BT` has the log-probs of those, scored without the others and `size` at a time."""
    changed = _other_prompts(played) if which == "prompt" else _other_tool_output(played)
    inputs, replaced_B, first_B = changed
    trained_BT = played.part(kept).trained_BT
    looked_at_BT = trained_BT & (
        torch.arange(trained_BT.shape[1])[None] > first_B[list(kept)][:, None]
    )
    at = [i for i, row in enumerate(kept) if replaced_B[row] and bool(looked_at_BT[i].any())]
    if at:
        after_BT = fixed_logps(trainer, trimmed(select(inputs, kept)), size)
        change_BT = (after_BT - before_BT).abs().cpu().double()
    per_rollout = [change_BT[i][looked_at_BT[i]].numpy() for i in at]
    return ContextEffect(
        which=which,
        rollouts=np.array([kept[i] for i in at], dtype=np.int64),
        replaced=np.array([replaced_B[kept[i]] for i in at], dtype=np.int64),
        change=np.array([values.mean() for values in per_rollout], dtype=np.float64),
        change_T=np.concatenate(per_rollout) if per_rollout else np.empty(0),
    )


def _other_prompts(played: Played) -> tuple[Inputs, list[int], Tensor]:
    """Every rollout gets the question of another prompt; what all prompts share stays."""
    if "pixel_values" in played.inputs:  # the places of images must stay what they are
        raise NotRecorded("prompts of text alone")
    prompts = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(played.inputs["prompt_ids"], played.inputs["prompt_mask"], strict=True)
    ]
    distinct = [list(ids) for ids in dict.fromkeys(map(tuple, prompts))]
    head, tail = _shared(distinct)
    ids_BT = played.inputs["prompt_ids"].clone()
    counts = []
    for i, own in enumerate(prompts):
        other = distinct[(distinct.index(own) + 1) % len(distinct)]
        end = len(own) - tail
        filling = _fill(other[head : len(other) - tail], end - head, shuffle=len(distinct) == 1)
        new = own[:head] + filling + own[end:]
        ids_BT[i, played.inputs["prompt_mask"][i].bool()] = torch.tensor(new).to(ids_BT)
        counts.append(sum(a != b for a, b in zip(own, new, strict=True)))
    return {**played.inputs, "prompt_ids": ids_BT}, counts, torch.full((len(prompts),), -1)


def _other_tool_output(played: Played) -> tuple[Inputs, list[int], Tensor]:
    """The tools' output is that of another rollout, preferably of another prompt."""
    tool_BT = (played.author_BT == int(Author.TOOL)) & played.mask_BT
    ids_BT = played.inputs["completion_ids"].clone()
    outputs = [ids[mask].tolist() for ids, mask in zip(ids_BT.cpu(), tool_BT, strict=True)]
    counts, first = [], []
    for i, own in enumerate(outputs):
        others = [one for one in outputs[i + 1 :] + outputs[:i] if one and one != own]
        far = others[len(others) // 2] if others else own
        new = _fill(far, len(own), shuffle=not others)
        ids_BT[i, tool_BT[i].to(ids_BT.device)] = torch.tensor(new, dtype=torch.long).to(ids_BT)
        places = [
            int(at) for at, a, b in zip(tool_BT[i].nonzero()[:, 0], own, new, strict=True) if a != b
        ]
        counts.append(len(places))
        first.append(min(places, default=ids_BT.shape[1]))
    return {**played.inputs, "completion_ids": ids_BT}, counts, torch.tensor(first)


def _shared(prompts: list[list[int]]) -> tuple[int, int]:
    """How many tokens all prompts have in common at their start and at their end."""
    shortest = min(map(len, prompts))
    if len(prompts) == 1:
        return 0, 0
    head = next((i for i in range(shortest) if len({p[i] for p in prompts}) > 1), shortest)
    room = shortest - head
    tail = next((i for i in range(room) if len({p[-1 - i] for p in prompts}) > 1), room)
    return head, tail


def _fill(tokens: list[int], length: int, *, shuffle: bool) -> list[int]:
    """`length` tokens out of `tokens`, repeated as often as needed; reversed if there is no
    other text to take."""
    if not tokens:
        return []
    source = tokens[::-1] if shuffle else tokens
    return list(islice((token for _ in range(length) for token in source), length))
