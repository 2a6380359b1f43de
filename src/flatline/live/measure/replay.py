"""Plays prompts of the batch again, at the next steps: with moved weights and with restored ones.

Two questions share the plays: whether the sampler follows the weights, and which weights the
rollouts of the next step name.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from flatline.live.measure.moving import Move, moved
from flatline.live.measure.passes import no_dropout
from flatline.live.measure.played import Played, fixed_logps
from flatline.live.measure.short_plays import MOVED_TURN, MOVED_TURNS, turns_of
from flatline.live.protocol import Trainer
from flatline.live.records import Delivery, Ints, Replay
from flatline.live.restore.numbers import Undo, random_numbers
from flatline.rollout.engine import Engine
from flatline.rollout.record import Author, Rollout
from flatline.rollout.table import evaluating

PROMPTS = 2
"""Groups that are played again."""
TOGETHER = 8
"""Rollouts of one plain pass."""


def there_and_back(
    trainer: Trainer, some: Played, move: Move, gap: float
) -> tuple[Delivery, Replay]:
    """Plays at three following steps: weights as they are, moved, and restored. `gap` is that of
    the batch's own rollouts of the same prompts."""
    rows = rows_to_play(some)
    no_dropout(trainer)  # `generate` has it on; delivery is a matter of weights
    start, same_numbers = trainer.steps_done, random_numbers()
    engine = trainer.engine()
    by_step = engine is not None and bool(_records(some))
    # With our engine the first play is that of the batch: its random numbers hang on the step
    # alone. Other samplers draw others for fewer rows.
    first = some if by_step else trainer.play(rows, start)
    before = gap if by_step else played_gap(trainer, first)
    with moved(trainer, move.amount):
        with short_turns(engine, MOVED_TURN, MOVED_TURNS):
            second = _play_at(trainer, rows, start + 1, same_numbers)
        gap_moved = played_gap(trainer, second)
        same = not by_step and first.completions == second.completions
        moved_BT = fixed_logps(trainer, first.inputs) if same else None
    with short_turns(engine, MOVED_TURN, MOVED_TURNS):
        third = _play_at(trainer, rows, start + 2, same_numbers)
    delivered = Delivery(
        visible=move.shift,
        gap_before=before,
        gap_moved=gap_moved,
        gap_restored=played_gap(trainer, third),
        same_by_chance=None if moved_BT is None else _chance(trainer, first, moved_BT),
    )
    versions = _versions(second, start + 1)
    return delivered, Replay(versions=versions, version_expected=start + 1)


def _chance(trainer: Trainer, played: Played, moved_BT: torch.Tensor) -> float:
    """How likely moved weights write the same tokens, at most, with the same random numbers.

    However two distributions share their random numbers, they give another token as often as their
    total variation says, or more often. That is the mean of |ratio - 1| / 2 over tokens that one of
    them has drawn, and for a single token never more than 1.
    """
    model_BT = (played.author_BT == int(Author.MODEL)) & played.mask_BT
    log_ratio_T = (moved_BT - fixed_logps(trainer, played.inputs)).cpu().double()[model_BT]
    apart_T = log_ratio_T.exp().sub(1).abs().div(2).clamp(max=1)
    return math.exp(-float(apart_T.sum()))


def rows_to_play(some: Played) -> list[dict[str, Any]]:
    """The rows of the data, without what was sampled for them."""
    return [{k: v for k, v in row.items() if k != "rollout"} for row in some.rows]


def short_turns(
    engine: Engine | None, tokens: int, turns: int | None = None
) -> AbstractContextManager[None]:
    """Turns of so many tokens, and so many turns, where the sampler can be told."""
    return nullcontext() if engine is None else turns_of(engine, tokens, turns)


def _play_at(trainer: Trainer, rows: list[dict[str, Any]], step: int, same_numbers: Undo) -> Played:
    """Play as at another step, with the random numbers of the first play."""
    same_numbers()
    return trainer.play(rows, step)


def played_gap(trainer: Trainer, played: Played) -> float:
    """Mean |sampler - trainer| over the model's tokens; NaN without sampler log-probs. Rollouts
    that are trained on other ids than were drawn say nothing about weights."""
    recorded = _records(played)
    if recorded:
        return _plain_gap(trainer, recorded)
    sampler_BT = played.sampler_BT
    if sampler_BT is None:
        return float("nan")
    model_BT = (played.author_BT == int(Author.MODEL)) & played.mask_BT
    trainer_BT = fixed_logps(trainer, played.inputs)
    gap_T = (sampler_BT.cpu() - trainer_BT.cpu()).abs()[model_BT & played.as_drawn_B[:, None]]
    return float(gap_T.nanmean())  # vLLM has no log-prob for some tokens


def _plain_gap(trainer: Trainer, rollouts: list[Rollout]) -> float:
    """The same against plain passes over what was sampled. Delivery is a matter of weights, and is
    told apart from a trainer that scores other ids, or with another mask."""
    model = trainer.whole_model
    gaps = []
    with torch.no_grad(), evaluating(model), trainer.autocast():
        for at in range(0, len(rollouts), TOGETHER):
            some = rollouts[at : at + TOGETHER]
            ids_BT = _side_by_side(some).to(model.device)
            logits_BTV = model(input_ids=ids_BT).logits
            pairs = zip(some, ids_BT, logits_BTV, strict=True)
            gaps += [_gaps_of(*each, trainer.temperature) for each in pairs]
    return float(torch.cat(gaps).mean())


def _side_by_side(rollouts: Sequence[Rollout]) -> torch.Tensor:
    """Ids in rows, filled up behind their end, where no token of theirs looks."""
    rows = [torch.tensor(one.prompt_ids + one.completion_ids) for one in rollouts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _gaps_of(
    rollout: Rollout, ids_T: torch.Tensor, logits_TV: torch.Tensor, temperature: float
) -> torch.Tensor:
    """|sampler - trainer| of the model's own tokens."""
    start, end = len(rollout.prompt_ids), len(rollout.prompt_ids) + len(rollout.completion_ids)
    logps_TV = (logits_TV[start - 1 : end - 1].float() / temperature).log_softmax(-1)
    logps_T = logps_TV.gather(1, ids_T[start:end, None])[:, 0].cpu()
    return (logps_T - torch.tensor(rollout.logprobs)).abs()[torch.tensor(rollout.loss_mask).bool()]


def _versions(played: Played, now: int) -> Ints:
    """Steps behind the weights that sampled; what was drawn from the trained model has its own."""
    if played.by_trained:
        return np.full(len(played.rows), now, dtype=np.int64)
    return np.array([rollout.weight_version for rollout in _records(played)], dtype=np.int64)


def _records(played: Played) -> list[Rollout]:
    return [row["rollout"] for row in played.rows if isinstance(row.get("rollout"), Rollout)]
