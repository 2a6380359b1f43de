"""Plays prompts of the batch again: with moved weights, with restored ones, at the next step."""

from typing import Any

import numpy as np
import torch

from flatline.rollout.record import Author, Rollout
from flatline.rollout.table import evaluating
from flatline.subject.moving import Move, moved
from flatline.subject.records import Delivery, Floats, Ints, Replay
from flatline.subject.scoring import Played, fixed_logps, play, prompt_ids
from flatline.subject.untouched import Undo, random_numbers

PROMPTS = 2
"""Groups that a test of the delivery plays."""


def delivery(trainer: Any, played: Played, move: Move) -> Delivery:
    """Three plays at three following steps: weights as they are, moved, and restored."""
    rows = [dict(row) for row in played.part(range(PROMPTS * trainer.num_generations)).rows]
    for row in rows:
        row.pop("rollout", None)
    start, same_numbers = trainer.state.global_step, random_numbers()
    first = play(trainer, rows)
    before = _gap(trainer, first)
    with moved(trainer, move.amount):
        second = _play_at(trainer, rows, start + 1, same_numbers)
        gap_moved = _gap(trainer, second)
    third = _play_at(trainer, rows, start + 2, same_numbers)
    plays = (first, second, third)
    by_step = any(isinstance(row.get("rollout"), Rollout) for row in first.rows)
    return Delivery(
        visible=move.shift,
        gap_before=before,
        gap_moved=gap_moved,
        gap_restored=_gap(trainer, third),
        moved_changes_samples=None if by_step else first.completions != second.completions,
        restored_repeats_samples=None if by_step else first.completions == third.completions,
        versions=np.array([one[0] for one in map(_versions, plays) if len(one)], dtype=np.int64),
        versions_expected=np.array([start, start + 1, start + 2]),
    )


def play_again(trainer: Any, played: Played) -> Replay:
    """The whole batch at the next step."""
    rows = [{k: v for k, v in row.items() if k != "rollout"} for row in played.rows]
    step = trainer.state.global_step + 1
    trainer.state.global_step = step
    torch.manual_seed(step)
    second = play(trainer, rows)
    pairs = list(zip(played.completions, second.completions, strict=True))
    return Replay(
        prompts=len(set(prompt_ids(played))),
        group_size=trainer.num_generations,
        unique_first=_unique(played, trainer.num_generations),
        unique_second=_unique(second, trainer.num_generations),
        repeated=sum(a == b for a, b in pairs) / len(pairs),
        versions=_versions(second),
        version_expected=step,
    )


def _play_at(trainer: Any, rows: list[dict[str, Any]], step: int, same_numbers: Undo) -> Played:
    """Play as at another step, with the random numbers of the first play."""
    trainer.state.global_step = step
    same_numbers()
    return play(trainer, rows)


def _gap(trainer: Any, played: Played) -> float:
    """Mean |sampler - trainer| over the model's tokens; NaN without sampler log-probs."""
    recorded = [row["rollout"] for row in played.rows if isinstance(row.get("rollout"), Rollout)]
    if recorded:
        return _plain_gap(trainer, recorded)
    sampler_BT = played.inputs.get("sampling_per_token_logps")
    if sampler_BT is None:
        return float("nan")
    model_BT = (played.author_BT == int(Author.MODEL)) & played.mask_BT
    trainer_BT = fixed_logps(trainer, played.inputs)
    return float((sampler_BT - trainer_BT).abs().cpu()[model_BT].mean())


def _plain_gap(trainer: Any, rollouts: list[Rollout]) -> float:
    """The same against plain passes over what was sampled. Delivery is a matter of weights, and is
    told apart from a trainer that scores other ids, or with another mask."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    gaps = []
    with torch.no_grad(), evaluating(model), trainer.accelerator.autocast():
        for rollout in rollouts:
            ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids], device=model.device)
            start = len(rollout.prompt_ids)
            logits_TV = model(input_ids=ids).logits[0, start - 1 : -1].float()
            logps_TV = (logits_TV / trainer.temperature).log_softmax(-1)
            logps_T = logps_TV.gather(1, ids[0, start:, None])[:, 0].cpu()
            ours_T = torch.tensor(rollout.loss_mask).bool()
            gaps.append((logps_T - torch.tensor(rollout.logprobs)).abs()[ours_T])
    return float(torch.cat(gaps).mean())


def _versions(played: Played) -> Ints:
    known = [row["rollout"] for row in played.rows if isinstance(row.get("rollout"), Rollout)]
    return np.array([rollout.weight_version for rollout in known], dtype=np.int64)


def _unique(played: Played, size: int) -> Floats:
    """Share of distinct completions in each group."""
    all_of_them = played.completions
    groups = [all_of_them[at : at + size] for at in range(0, len(all_of_them), size)]
    return np.array([len(set(group)) / len(group) for group in groups])
