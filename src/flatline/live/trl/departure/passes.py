"""The backward passes of one step, heard, and the stages that they show: log-probs to loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatline.live.departure.loss import Pass
from flatline.live.hooks import Patch
from flatline.live.inputs import Inputs
from flatline.live.stage_found import StageFound, departs, same
from flatline.live.trl.departure.scored import Row
from flatline.live.trl.grpo import scored, scorer_of
from flatline.spec.delivery import apart
from flatline.spec.numerics import Tolerance

ROW = "departure_row"
"""Extra tensor that tells the rows apart after TRL has dealt them out."""


def run_passes(
    trainer: Any, inputs: Inputs, data: Sequence[Mapping[str, Any]], n: int
) -> list[Pass]:
    """`n` backward passes of the trainer's own over the given batch."""
    passes: list[Pass] = []
    heard: list[Any] = []

    def scoring(score: Any, *args: Any, **kwargs: Any) -> Any:
        found = score(*args, **kwargs)
        if torch.is_grad_enabled():
            heard.append(scored(found))
        return found

    def computing(compute: Any, model: Any, batch: Inputs) -> Any:
        heard.clear()
        loss = compute(model, batch)
        one = Pass(batch[ROW].tolist(), dict(batch), float(loss.detach()))
        if len(heard) == 1:
            logps = heard[0][0]
            one.logps_BT = logps.detach()
            one.entropy_BT = heard[0][1]
            if logps.requires_grad:
                logps.register_hook(lambda g: setattr(one, "weight_BT", g.detach() / scale))
        passes.append(one)
        return loss

    scaler = getattr(trainer.accelerator, "scaler", None)
    scale = 1.0 if scaler is None else float(scaler.get_scale())
    numbered = {**inputs, ROW: torch.arange(len(data), device=inputs["completion_ids"].device)}
    trainer._step, trainer._buffered_inputs = 0, None
    with (
        Patch(trainer, "_generate_and_score_completions", lambda *_: dict(numbered)),
        Patch(trainer, "_compute_loss", computing),
        Patch(trainer, scorer_of(trainer), scoring),
    ):
        for k in range(n):
            trainer.accelerator.gradient_state._set_sync_gradients(k == n - 1)
            loss = trainer.training_step(trainer.model_wrapped, list(data), None)
            # Of a loss that is not yet divided by the passes of a step, transformers takes a share.
            if len(passes) == k + 1:
                passes[-1].loss = float(loss)
    return passes


def judge_logps(
    what: str,
    found: Tensor | Sequence[Tensor],
    expected: Sequence[Tensor],
    rows: Sequence[Row],
    limit: Tolerance,
) -> StageFound:
    """The trainer's log-probs of the trained tokens against those of each row alone."""
    pairs = [
        (found_T[: len(own_T)][row.mask_T.to(found_T.device)], own_T[row.mask_T.to(own_T.device)])
        for found_T, own_T, row in zip(found, expected, rows, strict=True)
    ]
    gap = apart(torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs]))
    text = f"the {what} log-probs differ by {gap.mean:.2g} nats a token, at most {gap.worst:.2g}"
    if gap.mean <= limit.logprob and gap.worst <= limit.logprob_worst:
        return same("log-probs", f"{text[0].upper()}{text[1:]}.", gap.mean, limit.logprob)
    return departs(
        "log-probs",
        f"Against each row scored alone, {text}; rounding explains {limit.logprob:.2g}.",
        _example(what, pairs, rows),
        measured=gap.mean,
        limit=limit.logprob,
    )


def _example(what: str, pairs: Sequence[tuple[Tensor, Tensor]], rows: Sequence[Row]) -> str:
    gaps = [float((a - b).abs().max()) if a.numel() else 0.0 for a, b in pairs]
    k = max(range(len(rows)), key=gaps.__getitem__)
    at = int((pairs[k][0] - pairs[k][1]).abs().argmax())
    token = int(rows[k].mask_T.nonzero()[at])
    return (
        f"row {k}, token {token} (id {rows[k].completion[token]}): {what} log-prob expected "
        f"{float(pairs[k][1][at]):.4f}, found {float(pairs[k][0][at]):.4f}"
    )
