"""All stages of one step, in their order."""

import math
from collections.abc import Callable
from typing import Any

import torch

from flatline.spec import STAGES, Asked, NotSpecified
from flatline.subject.departure import data, stepped
from flatline.subject.departure.asked import asked_of, tolerance_of
from flatline.subject.departure.found import StageFound, same, unknown
from flatline.subject.departure.passes import judge_logps, judge_loss, run_passes
from flatline.subject.departure.sampled import (
    ROWS,
    judge_completions,
    judge_sampler,
    own_sampler,
    sample,
)
from flatline.subject.departure.scored import Row, Scorer, no_dropout
from flatline.subject.moving import Move, moved
from flatline.subject.records import DataOrder
from flatline.subject.scoring import Played, score_again
from flatline.training.passes import Inputs

GENTLE = 0.1
"""Mean change of a log-prob, in nats, by which the weights are moved before a step is looked at:
tokens then leave the clip on both sides, and no exponential of a KL drowns the rest."""

Found = dict[str, StageFound]


def examine(trainer: Any, order: DataOrder, played: Played, move: Move) -> Found:
    """Every stage by its name. `played` are whole groups of the shared batch; `move` says how far
    weights must go to be seen: at its start a policy is its own reference and its own past, and
    nothing could be told apart."""
    found: Found = {}
    asked = asked_of(trainer.args, trainer.args.per_device_train_batch_size)
    found["rows"] = data.judge_rows(order, asked, played.rows)
    trainer.model.train()
    no_dropout(trainer.model)
    stages = _Step(trainer, played, move, found)
    for look in (stages.sampling, stages.scoring, stages.passing):
        _guarded(look, found)
    return {stage: found.get(stage, unknown(stage, "Not reached.")) for stage in STAGES}


def _guarded(look: Callable[[], None], found: Found) -> None:
    """What one look cannot do must not cost the others."""
    try:
        look()
    except NotSpecified as missing:
        _fill(found, f"Not specified: {missing}.")
    except Exception as error:
        _fill(found, f"Could not be compared: {type(error).__name__}: {error}.")


def _fill(found: Found, why: str) -> None:
    for stage in STAGES:
        found.setdefault(stage, unknown(stage, why))


class _Step:
    """One step of a trainer, looked at in three pieces."""

    def __init__(self, trainer: Any, played: Played, move: Move, found: Found) -> None:
        self.trainer, self.played, self.found = trainer, played, found
        self.visible = move.amount
        self.gentle = move.amount * min(1.0, GENTLE / max(move.shift, 1e-9))
        passes, in_generation = _dealt(trainer.args, len(played.rows))
        size = len(played.rows) // in_generation
        trainer.args.per_device_train_batch_size = size
        trainer.args.gradient_accumulation_steps = passes
        trainer.args.steps_per_generation = in_generation
        trainer.current_gradient_accumulation_steps = passes
        self.asked: Asked = asked_of(trainer.args, size)
        self.limit = tolerance_of(trainer)
        self.scorer = Scorer(trainer, self.asked.temperature)

    def sampling(self) -> None:
        """Prompts, completions, delivery."""
        if own_sampler(self.trainer):
            why = "Not specified: completions that a sampler of its own gives."
            for stage in ("prompts", "completions", "delivery"):
                self.found[stage] = unknown(stage, why)
            return
        group = self.asked.group
        rows = [*self.played.rows[::group], *self.played.rows[1::group]][:ROWS]
        prompts = [row["prompt"] for row in rows]
        drawn = sample(self.trainer, prompts)
        if drawn is None:
            why = "The sampler cannot be heard."
            self.found["completions"] = unknown("completions", why)
            self.found["delivery"] = unknown("delivery", why)
            return
        self.found["prompts"] = data.judge_prompts(self.trainer, self.asked, prompts, drawn.prompts)
        wrong = judge_completions(drawn, drawn.prompts)
        given = (self.scorer, drawn.prompts, self.limit)
        self.found["completions"] = wrong or judge_sampler("completions", drawn, *given)
        with moved(self.trainer, self.visible):
            after = sample(self.trainer, prompts)
            if after is not None:
                self.found["delivery"] = judge_sampler("delivery", after, *given)

    def scoring(self) -> None:
        """Mask, rewards, advantages; what the passes are given."""
        trainer, asked = self.trainer, self.asked
        rows = data.rows_of(trainer, asked, self.played)
        if rows is None:
            raise NotSpecified("a sampler that TRL does not know of")
        self.rows: list[Row] = rows
        self.start = self.scorer.all(rows)
        with moved(trainer, self.gentle), data.hearing(trainer) as heard:
            self.inputs: Inputs = score_again(trainer, self.played)
            self.old = self.scorer.all(rows)
        self.reference = self.scorer.reference(rows) if asked.beta else None
        self.found["mask"] = data.judge_mask(self.inputs, rows)
        self.found["rewards"] = data.judge_rewards(trainer, asked, heard, self.played)
        advantages = self.inputs["advantages"]
        self.found["advantages"] = data.judge_advantages(asked, heard, advantages)

    def passing(self) -> None:
        """Log-probs, ratio and KL, loss, gradient, update."""
        self.asked.refuse_besides()
        with moved(self.trainer, self.gentle), moved(self.trainer, self.gentle / 2):
            self._passes()
            self._update()

    def _passes(self) -> None:
        trainer, asked, limit, rows = self.trainer, self.asked, self.limit, self.rows
        if trainer.optimizer is None:
            trainer.create_optimizer()
        trainer.model.zero_grad()
        stepped.called(trainer, "on_step_begin")
        passes = run_passes(trainer, self.inputs, self.played.rows, asked.passes)
        scale = _scale(trainer)
        for _, weight in stepped.trainable(trainer):
            if weight.grad is not None and scale != 1:
                weight.grad /= scale
        for one in passes:
            if one.weight_BT is not None and scale != 1:
                one.weight_BT = one.weight_BT / scale
        raw = stepped.held_gradients(trainer)
        if asked.largest_norm:
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), asked.largest_norm)
        stepped.called(trainer, "on_pre_optimizer_step")
        handed = stepped.held_gradients(trainer)
        self.handed = handed
        dealt = [one.rows for one in passes]
        self.found["log-probs"] = self._logprobs(passes)
        tokens = sum(int(row.mask_T.sum()) for row in rows)
        judged = judge_loss(asked, passes, _tokens(self.inputs), limit)
        self.found[judged.stage] = judged
        if judged.stage == "loss":
            self.found["ratio and KL"] = (
                same("ratio and KL", judged.text) if not judged.departs else _same_shape()
            )
            if judged.departs is None:
                self.found["ratio and KL"] = unknown("ratio and KL", judged.text)
        else:
            self.found["loss"] = unknown("loss", "Follows from the ratio and the KL.")
        trainer.model.zero_grad()
        old = self.old if "old_per_token_logps" in self.inputs else None
        reference = self._reference()
        if asked.beta and reference is None:
            self.found["gradient"] = unknown("gradient", "The reference is not known.")
            return
        stepped.specified_gradient(
            asked, self.scorer, rows, dealt, self.inputs["advantages"], old, reference, tokens
        )
        one, other = stepped.against(trainer, raw), stepped.against(trainer, handed)
        norm = math.sqrt(
            sum(
                float(w.grad.double().square().sum())
                for _, w in stepped.trainable(trainer)
                if w.grad is not None
            )
        )
        self.found["gradient"] = stepped.judge_gradient(one, other, norm, asked, limit)

    def _logprobs(self, passes: list[Any]) -> StageFound:
        """Of the policy in its passes, of the old policy, of the reference."""
        limit, rows, inputs = self.limit, self.rows, self.inputs
        looks: list[StageFound] = []
        if all(one.logps_BT is not None for one in passes):
            order = [k for one in passes for k in one.rows]
            padded = [
                torch.nn.functional.pad(t, (0, inputs["completion_ids"].shape[1] - len(t)))
                for one in passes
                for t in one.logps_BT
            ]
            new = self.scorer.all([rows[k] for k in order])
            looks.append(
                judge_logps("policy's", torch.stack(padded), new, [rows[k] for k in order], limit)
            )
        if "old_per_token_logps" in inputs:
            looks.append(judge_logps("old", inputs["old_per_token_logps"], self.old, rows, limit))
        looks += self._judge_reference()
        if not looks:
            return unknown("log-probs", "The loss does not ask for TRL's log-probs.")
        return next((one for one in looks if one.departs), looks[0])

    def _judge_reference(self) -> list[StageFound]:
        """Where the policy began, or the base under its adapters. A reference that is neither that
        nor the policy may be one that was asked for: it is left alone."""
        found_BT = self.inputs.get("ref_per_token_logps")
        if found_BT is None or not self.asked.beta:
            return []
        expected = self.start if self.reference is None else self.reference
        judged = judge_logps("reference's", found_BT, expected, self.rows, self.limit)
        follows = judge_logps("reference's", found_BT, self.old, self.rows, self.limit)
        return [judged] if not judged.departs or not follows.departs else []

    def _reference(self) -> list[torch.Tensor] | None:
        """The specified reference; the trainer's own where another may have been asked for."""
        found_BT = self.inputs.get("ref_per_token_logps")
        if found_BT is None:
            return None
        judged = self._judge_reference()
        if judged:
            return self.start if self.reference is None else self.reference
        return [t[: len(row.completion)] for t, row in zip(found_BT, self.rows, strict=True)]

    def _update(self) -> None:
        trainer = self.trainer
        schedule = stepped.judge_schedule(trainer, self.asked)
        before = stepped.before_step(trainer)
        weights = dict(stepped.trainable(trainer))
        for name, weight in weights.items():
            gradient = self.handed.get(name)
            weight.grad = None if gradient is None else gradient.to(weight.device)
        for group in trainer.optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        trainer.optimizer.step()
        stepped.called(trainer, "on_optimizer_step")
        trainer.model.zero_grad()
        trainer.state.global_step += 1
        stepped.called(trainer, "on_step_end")
        judged = stepped.judge_update(trainer, self.asked, before, self.handed, self.limit)
        self.found["update"] = judged if judged.departs or schedule is None else schedule


def _same_shape() -> StageFound:
    return same("ratio and KL", "The tokens of each row stand in the specified proportion.")


def _tokens(inputs: Inputs) -> int:
    mask_BT = inputs["completion_mask"].bool()
    if "tool_mask" in inputs:
        mask_BT = mask_BT & inputs["tool_mask"].bool()
    return int(mask_BT.sum())


def _dealt(args: Any, rows: int) -> tuple[int, int]:
    """Passes of a step and of a generation, near to those asked for, that share `rows` evenly."""
    steps = max(1, args.steps_per_generation // args.gradient_accumulation_steps)
    if rows % steps:
        steps = 1
    passes = math.gcd(rows // steps, args.gradient_accumulation_steps)
    return passes, passes * steps


def _scale(trainer: Any) -> float:
    """What a loss is multiplied with in fp16, so that gradients do not vanish."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None else 1.0
