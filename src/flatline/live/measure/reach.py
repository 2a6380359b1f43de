"""How far back what is scored depends: some words of a completion changed, and what moves then."""

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live.inputs import Inputs, select, trimmed
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.protocol import Trainer
from flatline.live.records import Reach

ROLLOUTS = 2
"""Rollouts that are looked at: the longest."""
PLACES = 6
"""Places of each that are changed."""
WORDS = 3
"""Tokens that are changed at a place: one alone may be one that nobody looks at."""


def reaches(trainer: Trainer, played: Played) -> tuple[Reach, ...]:
    """The longest completions, each with some of its words in another order, a place at a time."""
    if "pixel_values" in played.inputs:  # the places of images must stay what they are
        raise NotRecorded("completions of text alone")
    longest = played.mask_BT.sum(1).argsort(descending=True, stable=True)
    return tuple(_reach(trainer, played, int(i)) for i in longest[:ROLLOUTS])


def _reach(trainer: Trainer, played: Played, rollout: int) -> Reach:
    """Each in a pass of its own: what nothing reaches is then the same to the last bit."""
    inputs = trimmed(select(played.inputs, [rollout]))
    length = int(played.mask_BT[rollout].sum())
    places = np.unique(np.linspace(0, max(length - WORDS, 0), PLACES + 1)[:-1].astype(int))
    before_T = _scored(trainer, inputs, inputs["completion_ids"])
    after_CT = [
        _scored(trainer, inputs, _changed(inputs["completion_ids"], int(at))) for at in places
    ]
    return Reach(
        prompt=int((inputs["prompt_mask"] != 0).sum()),
        places=places + WORDS,
        logp_T=before_T.numpy()[:length],
        moved_CT=np.stack([(after_T != before_T).numpy()[:length] for after_T in after_CT]),
    )


def _scored(trainer: Trainer, inputs: Inputs, ids_BT: Tensor) -> Tensor:
    found: Tensor = fixed_logps(trainer, {**inputs, "completion_ids": ids_BT}, 1)[0].cpu().double()
    return found


def _changed(ids_BT: Tensor, at: int) -> Tensor:
    """Other tokens of the same row at this place, so that all of them are words of the model."""
    changed_BT, count = ids_BT.clone(), ids_BT.shape[1]
    for place in range(at, min(at + WORDS, count)):
        others = ids_BT[0][ids_BT[0] != ids_BT[0, place]]
        if len(others):
            changed_BT[0, place] = others[place % len(others)]
    return torch.as_tensor(changed_BT)
