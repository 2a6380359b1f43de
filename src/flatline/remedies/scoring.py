"""Log-probs and loss: those of the specification, where the trainer's are others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flatline.live.departure.loss import specified_loss, trained
from flatline.live.hooks import Patch
from flatline.live.inputs import Inputs
from flatline.live.restore.numbers import random_numbers
from flatline.live.trl.departure.asked import asked_of, tolerance_of
from flatline.live.trl.grpo import scored, scorer_of
from flatline.remedies.base import Tally, Undo
from flatline.spec.delivery import apart

GENERATED = "_generate_and_score_completions"


def logprobs_of_the_policy(trainer: Any, tally: Tally) -> list[Undo]:
    """Of the tokens behind everything in front of them, at the temperature of sampling."""

    def around(
        score: Callable[..., Any],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        given = (model, input_ids, attention_mask, logits_to_keep)
        found = score(*given, *args, **kwargs)
        if kwargs.get("pixel_values") is not None:
            return found
        own_BT, entropy_BT = scored(found)
        rule = _Scorer(trainer, *given)
        put_back = random_numbers()
        with torch.no_grad():
            right_BT = rule()[0]
        put_back()
        seen_BT = attention_mask[:, -logits_to_keep:].bool()
        gap = apart(own_BT.detach()[seen_BT], right_BT[seen_BT])
        limit = tolerance_of(trainer)
        off = gap.mean > limit.logprob or gap.worst > limit.logprob_worst
        tally.count(off)
        if not off:
            return found
        right_BT, right_entropy_BT = rule()
        if not isinstance(found, tuple):
            return right_BT
        rest = () if entropy_BT is None else (right_entropy_BT,)
        return (right_BT, *(rest or found[1:2]), *found[2:])

    return [Patch(trainer, scorer_of(trainer), around).undo]


class _Scorer:
    """A batch by the definition: softmax of the logits divided by the temperature."""

    def __init__(self, trainer: Any, model: Any, ids: Tensor, seen: Tensor, keep: int) -> None:
        self._trainer, self._model = trainer, model
        self._ids, self._seen, self._keep = ids, seen, keep

    def __call__(self) -> tuple[Tensor, Tensor]:
        size = self._trainer.args.per_device_train_batch_size
        parts = [self._some(slice(at, at + size)) for at in range(0, len(self._ids), size)]
        logps, entropies = zip(*parts, strict=True)
        return torch.cat(logps), torch.cat(entropies)

    def _some(self, rows: slice) -> tuple[Tensor, Tensor]:
        ids_BL = self._ids[rows]
        with self._trainer.accelerator.autocast():
            found = self._model(input_ids=ids_BL, attention_mask=self._seen[rows], use_cache=False)
        logits_BTV = found.logits[:, -self._keep - 1 : -1].float() / self._trainer.args.temperature
        every_BTV = logits_BTV.log_softmax(-1)
        logps_BT = every_BTV.gather(2, ids_BL[:, -self._keep :, None])[..., 0]
        return logps_BT, -(every_BTV.exp() * every_BTV).sum(-1).detach()


def loss_by_formula(trainer: Any, tally: Tally) -> list[Undo]:
    """Ratio, clip, KL, weights and sign as asked, of the batch that the pass was dealt."""
    asked = asked_of(trainer, trainer.args.per_device_train_batch_size)
    asked.refuse_besides()
    batch: dict[str, Any] = {}

    def generating(make: Callable[..., Inputs], *args: Any, **kwargs: Any) -> Inputs:
        made = make(*args, **kwargs)
        if trainer.model.training:
            counted = trained(made).sum()
            batch["tokens"] = int(trainer.accelerator.gather(counted).sum())
            batch["tokens"] //= trainer.accelerator.num_processes
        return made

    def computing(compute: Callable[..., Tensor], model: Any, inputs: Inputs) -> Tensor:
        if not trainer.model.training or "tokens" not in batch:
            return compute(model, inputs)
        heard: list[tuple[Tensor, Tensor | None]] = []

        def hear(score: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            found = score(*args, **kwargs)
            if torch.is_grad_enabled():
                heard.append(scored(found))
            return found

        given = dict(inputs)  # a script may take something out of it
        with Patch(trainer, scorer_of(trainer), hear):
            own = compute(model, inputs)
        if len(heard) != 1 or not heard[0][0].requires_grad:
            return own
        right, _ = specified_loss(asked, given, *heard[0], batch["tokens"])
        off = _off(own, right, heard[0][0], tolerance_of(trainer).weight)
        return tally.chosen(own, right.to(own), off)

    return [
        Patch(trainer, GENERATED, generating).undo,
        Patch(trainer, "_compute_loss", computing).undo,
    ]


def _off(own: Tensor, right: Tensor, logps_BT: Tensor, limit: float) -> bool:
    """By what each token's log-prob weighs in the loss."""
    a, b = (_slope(one, logps_BT) for one in (own, right))
    return float((a - b).abs().max()) > limit * max(float(b.abs().max()), 1e-12)


def _slope(loss: Tensor, logps_BT: Tensor) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros_like(logps_BT)
    (found,) = torch.autograd.grad(loss, logps_BT, retain_graph=True, allow_unused=True)
    return torch.zeros_like(logps_BT) if found is None else found
