"""The attention mask: ones on every token of a row, made from the row and not from what is trained.

A row is everything between its first and its last token that is not padding.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from flatline.live.hooks import is_mask, nested_models
from flatline.remedies.base import Tally, Undo

Mend = Callable[[Tensor, Tensor], Tensor]
"""The mask as it is and the row of each token -> the mask as it must be."""


def see_every_token(trainer: Any, tally: Tally) -> list[Undo]:
    """What was hidden of a row is seen."""
    return _mending(trainer, tally, lambda seen_BL, row_BL: seen_BL.bool() | row_BL)


def see_no_padding(trainer: Any, tally: Tally) -> list[Undo]:
    """What is no part of a row is hidden."""
    return _mending(trainer, tally, _less_padding)


def _less_padding(seen_BL: Tensor, row_BL: Tensor) -> Tensor:
    """The first token behind a row stays as it is: the padding may also be the end of a turn."""
    behind_BL = row_BL.roll(1, 1) & ~row_BL
    behind_BL[:, 0] = False
    return seen_BL.bool() & (row_BL | behind_BL)


def _mending(trainer: Any, tally: Tally, mend: Mend) -> list[Undo]:
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    padding = tokenizer.pad_token_id

    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        ids_BL: Any = kwargs.get("input_ids", args[0] if args else None)
        seen_BL: Any = kwargs.get("attention_mask")
        if not is_mask(seen_BL) or not is_mask(ids_BL) or ids_BL.shape != seen_BL.shape:
            return None
        right_BL = mend(seen_BL, row_of(ids_BL != padding))
        off = not bool((right_BL == seen_BL.bool()).all())
        tally.count(off)
        return (args, {**kwargs, "attention_mask": right_BL.to(seen_BL)}) if off else None

    # The innermost module that is given one: whatever came to the mask on its way is behind it.
    module = nested_models(trainer.accelerator.unwrap_model(trainer.model))[-1]
    return [module.register_forward_pre_hook(hook, with_kwargs=True).remove]


def row_of(real_BL: Tensor) -> Tensor:
    """True from the first to the last token that is not padding."""
    begun_BL = real_BL.int().cumsum(1) > 0
    unfinished_BL = real_BL.flip(1).int().cumsum(1).flip(1) > 0
    return begun_BL & unfinished_BL
