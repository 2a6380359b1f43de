"""What a pass is given: the trainer's own batch, with the specified value where one departs.

Everything is judged on what the trainer itself sampled and paid, so that a remedy repairs its own
stage and no other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flatline.errors import ConfigError
from flatline.live.departure.loss import trained
from flatline.live.hooks import Patch
from flatline.live.restore.numbers import random_numbers
from flatline.live.trl.departure.asked import asked_of, tolerance_of
from flatline.live.trl.grpo import scored, scorer_of
from flatline.live.trl.settings import stop_ids
from flatline.remedies.base import Tally, Undo
from flatline.spec import Asked
from flatline.spec.advantages import advantages, beyond_rounding
from flatline.spec.completions import was_cut
from flatline.spec.delivery import apart
from flatline.spec.mask import loss_mask
from flatline.spec.numerics import ADVANTAGE

OLD = "old_per_token_logps"


class Heard:
    """What went into a batch."""

    generated: Any = None
    """What `_generate` returned."""
    written: Any = None
    """Which tokens the model wrote, as the loop over tool calls told them apart."""
    paid_BF: Tensor | None = None

    def generate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.generated = original(*args, **kwargs)
        return self.generated

    def call_tools(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        self.written = found[0]
        return found

    def pay(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.paid_BF = original(*args, **kwargs)
        return self.paid_BF


Batch = dict[str, Any]
Mend = Callable[[Heard, Batch], Batch]


def loss_on_what_was_written(trainer: Any, tally: Tally) -> list[Undo]:
    """Exactly the tokens that the model wrote carry a loss."""
    return _mending(trainer, lambda heard, batch: _mask(trainer, tally, heard, batch))


def advantages_by_formula(trainer: Any, tally: Tally) -> list[Undo]:
    """By the baseline and scale asked for, of the rewards that arrived."""
    if _asked(trainer).kl_place == "reward" and trainer.args.beta:
        raise ConfigError(
            "Advantages with a KL in the reward (RLOO with `beta` above 0) have no remedy yet.\n"
            "Set `beta` to 0, or fix the line that the checkup names."
        )
    return _mending(trainer, lambda heard, batch: _advantages(trainer, tally, heard, batch))


def old_of_this_batch(trainer: Any, tally: Tally) -> list[Undo]:
    """Old log-probs are those of this batch by the policy that sampled it."""
    return _mending(trainer, lambda heard, batch: _old(trainer, tally, batch))


def _mending(trainer: Any, mend: Mend) -> list[Undo]:
    def around(make: Callable[..., Batch], *args: Any, **kwargs: Any) -> Batch:
        if not trainer.model.training:
            return make(*args, **kwargs)
        heard = Heard()
        with (
            Patch(trainer, "_generate", heard.generate),
            Patch(trainer, "_tool_call_loop", heard.call_tools),
            Patch(trainer, "_calculate_rewards", heard.pay),
        ):
            batch = make(*args, **kwargs)
        return mend(heard, batch)

    return [Patch(trainer, "_generate_and_score_completions", around).undo]


def _asked(trainer: Any) -> Asked:
    return asked_of(trainer, trainer.args.per_device_train_batch_size)


def _mask(trainer: Any, tally: Tally, heard: Heard, batch: Batch) -> Batch:
    completions, asked = heard.generated[1], _asked(trainer)
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    ends = stop_ids(trainer) | {tokenizer.pad_token_id}
    own = heard.written
    if own is None and getattr(trainer, "rollout_func", None):
        own = heard.generated[2]
    rows = [
        loss_mask(asked, len(ids), None if own is None else own[k], was_cut(ids, ends))
        for k, ids in enumerate(completions)
    ]
    width = batch["completion_ids"].shape[1]
    right_BT = torch.zeros_like(batch["completion_mask"], dtype=torch.bool)
    wide_BT = pad_sequence(rows, batch_first=True)[:, :width]
    right_BT[:, : wide_BT.shape[1]] = wide_BT.to(right_BT.device)
    off = not torch.equal(trained(batch), right_BT)
    tally.count(off)
    if not off:
        return batch
    kept = batch["completion_mask"]
    lengths = torch.tensor([len(ids) for ids in completions], device=kept.device)
    cut = right_BT.any(1) | torch.tensor(not asked.mask_cut, device=kept.device)
    there_BT = (torch.arange(width, device=kept.device) < lengths[:, None]) & cut[:, None]
    counted = trainer.accelerator.gather(right_BT.sum()).sum()
    mended = {name: value for name, value in batch.items() if name != "tool_mask"}
    mended |= {"completion_mask": there_BT.to(kept), "num_items_in_batch": counted}
    return mended if own is None else mended | {"tool_mask": right_BT.to(kept)}


def _advantages(trainer: Any, tally: Tally, heard: Heard, batch: Batch) -> Batch:
    if heard.paid_BF is None:
        return batch
    asked, paid_BF = _asked(trainer), heard.paid_BF.double().cpu().numpy()
    whole_B = advantages(asked, paid_BF)
    begin = trainer.accelerator.process_index * len(batch["advantages"])
    here = slice(begin, begin + len(batch["advantages"]))
    own_B, right_B = batch["advantages"].detach().double().cpu(), torch.from_numpy(whole_B[here])
    off = own_B.shape != right_B.shape
    if not off:
        found_B = np.copy(whole_B)
        found_B[here] = own_B.numpy()
        off = bool((beyond_rounding(asked, paid_BF, found_B, whole_B) > ADVANTAGE).any())
    tally.count(off)
    return {**batch, "advantages": right_B.to(batch["advantages"])} if off else batch


def _old(trainer: Any, tally: Tally, batch: Batch) -> Batch:
    args = trainer.args
    asked_for = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations)
    if OLD not in batch and not asked_for:  # each pass takes its own
        return batch
    right_BT = _scored(trainer, batch)
    own_BT: Any = batch.get(OLD)
    mask_BT = trained(batch)
    off = own_BT is None or own_BT.shape != right_BT.shape
    if not off and mask_BT.any():
        limit, gap = tolerance_of(trainer), apart(own_BT[mask_BT], right_BT[mask_BT])
        off = gap.mean > limit.logprob or gap.worst > limit.logprob_worst
    tally.count(off)
    return {**batch, OLD: right_BT} if off else batch


def _scored(trainer: Any, batch: Batch) -> Tensor:
    """By the trainer's own scorer, with the weights as they are."""
    ids_BL = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen_BL = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    keep = batch["completion_ids"].shape[1]
    put_back = random_numbers()
    size = trainer.args.per_device_train_batch_size
    with torch.no_grad():
        score = getattr(trainer, scorer_of(trainer))
        found = score(trainer.model, ids_BL, seen_BL, keep, batch_size=size)
    put_back()
    return scored(found)[0]
