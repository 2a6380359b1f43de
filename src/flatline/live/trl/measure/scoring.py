"""Plays a batch and scores it, always through the trainer's own methods.

Log-probs are caught where `_compute_loss` asks for them, so whatever the trainer really does on the
way to its loss (its masks, its temperature, a subclass, a planted fault) is in them.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live import ranks
from flatline.live.hooks import Guard, Patch
from flatline.live.inputs import Inputs, select
from flatline.live.measure.played import Generated, Judged, Played
from flatline.live.records import PaidAgain
from flatline.live.trl.grpo import GrpoTrainer, scored, scorer_of
from flatline.live.trl.sampler import drawn, hearing
from flatline.live.trl.settings import TRANSFORMERS, engine_of

SLOW_JUDGE = 30.0
"""Seconds of asking after which a judge is not asked once more."""


def first_rows(trainer: GrpoTrainer) -> list[dict[str, Any]]:
    """The rows of the first generation, off a fresh iterator."""
    rows = next(iter(trainer.get_train_dataloader()))
    return [dict(row) for row in rows]  # sampling adds to them


def play(trainer: GrpoTrainer, rows: Sequence[Mapping[str, Any]]) -> Played:
    """Sample and score the rows as in training."""
    trainer.model.train()
    own = [dict(row) for row in rows]
    caught: list[Generated] = []

    def catch(sample: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, prompts = set(vars(trainer)), copy.deepcopy(args[0] if args else ())
        result = sample(*args, **kwargs)
        left = {name: value for name, value in vars(trainer).items() if name not in before}
        caught.append(Generated(result, left, prompts))
        return result

    judged: list[Judged] = []

    def judge(calculate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        paid = calculate(*args, **kwargs)
        judged.append(Judged(args, kwargs, paid))
        return paid

    with (
        Patch(trainer, "_generate", catch),
        Patch(trainer, "_calculate_rewards", judge),
        hearing(trainer, Guard()) as calls,
    ):
        inputs = dict(trainer._generate_and_score_completions(own))
    played = Played(
        own, inputs, caught[0] if caught else None, judged=judged[-1] if judged else None
    )
    played.drawn = drawn(calls, [np.array(ids) for ids in played.completions])
    played.by_trained = bool(played.drawn) and engine_of(trainer) == TRANSFORMERS
    return played


def score_again(trainer: GrpoTrainer, played: Played) -> Inputs:
    """Old and reference log-probs, rewards and advantages of the same completions, as in training
    with the weights as they are now."""
    if played.generated is None:
        raise NotRecorded("tokens.reference")
    trainer.model.train()
    rows = [dict(row) for row in played.rows]
    vars(trainer).update(played.generated.left)
    result = played.generated.result
    with Patch(trainer, "_generate", lambda *_, **__: result):
        return dict(trainer._generate_and_score_completions(rows))


def paid_again(trainer: GrpoTrainer, played: Played) -> PaidAgain:
    """The same completions paid twice more; once, where a judge takes long."""
    judged = played.judged
    if judged is None:
        raise NotRecorded("rewards asked for where TRL asks for them")
    paid, begun = [judged.paid_BF], time.perf_counter()
    while len(paid) < 3 and time.perf_counter() - begun < SLOW_JUDGE:
        paid.append(trainer._calculate_rewards(*judged.args, **judged.kwargs))
    before_R, now_R = (
        (one_BF * trainer.reward_weights.to(one_BF)).nansum(1).double().cpu().numpy()
        for one_BF in paid[-2:]
    )
    group_R = np.arange(len(now_R)) // int(trainer.num_generations)
    return PaidAgain(before_R=before_R, now_R=now_R, group_R=group_R)


def trained_logps(trainer: GrpoTrainer, inputs: Inputs, size: int | None = None) -> Tensor:
    """Log-probs as the loss uses them, in passes of the trainer's size unless another is given."""
    size = size or int(trainer.args.per_device_train_batch_size)
    # The training loop sets it before the first pass.
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    found = []
    rollouts = list(range(len(inputs["completion_ids"])))
    for start in rollouts[::size]:
        piece = select(inputs, rollouts[start : start + size])
        found.append(_caught(trainer, piece))
    return ranks.first(torch.cat(found))


def scoring_logps(trainer: GrpoTrainer, inputs: Inputs, model: Any = None) -> Tensor:
    """Log-probs without gradients, as TRL takes those of the old policy and of the reference."""
    ids_BT = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask_BT = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    keep = inputs["completion_ids"].shape[1]
    size = trainer.args.per_device_train_batch_size
    score = getattr(trainer, _scorer(trainer))
    images = {name: inputs[name] for name in signature(score).parameters if name in inputs}
    with torch.no_grad():
        found = score(
            trainer.model if model is None else model,
            ids_BT,
            mask_BT,
            keep,
            batch_size=size,
            **images,
        )
    return ranks.first(scored(found)[0])


def _caught(trainer: GrpoTrainer, inputs: Inputs) -> Tensor:
    """The log-probs that one call of `_compute_loss` asks for."""
    found: list[Tensor] = []

    def catch(scorer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = scorer(*args, **kwargs)
        found.append(scored(result)[0].detach())
        return result

    with Patch(trainer, _scorer(trainer), catch):
        trainer._compute_loss(trainer.model_wrapped, dict(inputs))
    if not found:
        raise NotRecorded("tokens.trainer")
    return found[0]


def _scorer(trainer: GrpoTrainer) -> str:
    name = scorer_of(trainer)
    if not name:
        raise NotRecorded("tokens.trainer")
    return name
