"""Decodes one turn of every play at a table, a token at a time, with the host looking on.

The host reads every token as it is drawn, so a row that has ended is left out of the next step.
That is the fastest way where a step takes long beside the reading, as it does on a CPU.
"""

import math
from collections.abc import Mapping, Set
from typing import NamedTuple

import torch
from torch import Tensor

from flatline.errors import ModelError
from flatline.rollout.sampling import Sampling, sample
from flatline.rollout.table import Play, Table


class Plan(NamedTuple):
    """What a turn may be."""

    rooms: Mapping[Play, int]
    """Tokens that each play may write, at least one."""
    uniforms_NB: Tensor
    """Random numbers for as many tokens as the longest may have."""
    sampling: Sampling
    """How tokens are drawn."""
    ends: Set[int]
    """Tokens that end a turn."""


def decode(table: Table, turn: Plan) -> set[Play]:
    """Feed what each play has not read, write its turn; those that ended it themselves."""
    logits_BV = table.feed()
    uniforms_NB = turn.uniforms_NB.to(logits_BV.device)
    seated = list(table.plays)
    ended: set[Play] = set()
    players: list[Play] = []
    logprobs: list[Tensor] = []
    for n in range(len(uniforms_NB)):
        ids_B, logps_B = sample(logits_BV, uniforms_NB[n], turn.sampling)
        players += seated
        logprobs.append(logps_B)
        active = set()
        for play, id in zip(seated, ids_B.tolist(), strict=True):
            play.completion_ids.append(id)
            if id in turn.ends:
                ended.add(play)
            elif n + 1 < turn.rooms[play]:
                active.add(play)
        if not active:
            break
        if len(active) < len(seated):
            order = table.seat_first(active, among=len(seated))
            ids_B, uniforms_NB = ids_B[order], uniforms_NB[:, order]
            seated = table.plays[: len(active)]
        logits_BV = table.step(ids_B)
    for player, logprob in zip(players, torch.cat(logprobs).tolist(), strict=True):
        _note(player, logprob)
    return ended


def _note(play: Play, logprob: float) -> None:
    """Record the log-prob of a token that was written."""
    if math.isnan(logprob):
        raise ModelError(
            f"The model gave NaN instead of log-probs on problem {play.job.problem.id!r}.\n"
            "Its weights are broken: most often the gradient of an earlier step was NaN already.\n"
            "Go back to the last good checkpoint; try without `--bf16`, or a lower --learning-rate."
        )
    play.logprobs.append(logprob)
