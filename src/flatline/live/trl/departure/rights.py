"""Every value on the way through a step that the specification can name, in TRL's shapes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flatline.live.departure.loss import trained
from flatline.live.departure.rights import of_advantages, of_inputs
from flatline.live.trl.departure.data import rendered
from flatline.live.where.specified import Specified

if TYPE_CHECKING:
    from flatline.live.trl.departure.stages import Step


def of_sampling(step: "Step") -> Iterator[Specified]:
    """Prompts, and what was drawn for them."""
    assert step.drawn is not None
    tokenizer = step.trainer.processing_class
    prompts = [rendered(step.trainer, one) for one in step.prompts]
    yield from _padded("prompt", prompts, tokenizer.pad_token_id, left=True)
    yield from _padded("completion", step.drawn.drawn, tokenizer.pad_token_id, left=False)


def of_scoring(step: "Step", *, paid: bool = True, arrived: bool = True) -> Iterator[Specified]:
    """Ids, masks, log-probs, rewards and advantages of the batch. `paid` is False where a function
    pays wrongly, `arrived` where what it pays does not arrive: what follows is not right either."""
    pad = step.trainer.processing_class.pad_token_id
    prompts = [row.prompt for row in step.rows]
    completions = [row.completion for row in step.rows]
    front = list(_padded("prompt", prompts, pad, left=True))
    back = list(_padded("completion", completions, pad, left=False))
    yield from (*front, *back)
    yield Specified("ids", torch.cat([_of(front[1]), _of(back[1])], 1))
    mask_BT = _right_padded([row.mask_T.double() for row in step.rows], 0.0)
    yield Specified("loss mask", mask_BT)
    yield Specified("attention", torch.cat([_of(front[2]), _of(back[2])], 1))
    yield Specified("attention", torch.cat([_of(front[2]), mask_BT], 1))
    yield Specified("trained tokens", mask_BT.sum())
    yield Specified("trained tokens of each row", mask_BT.sum(1))
    for name, rows in (("old", step.old), ("reference", step.base)):
        logps_BT = _right_padded(_on_cpu(rows), 0.0)
        yield Specified(f"{name} log-probs", logps_BT, mask_BT)
    if step.kl_B is not None:
        old_BT, base_BT = (_right_padded(_on_cpu(rows), 0.0) for rows in (step.old, step.base))
        yield Specified("KL of each token", old_BT - base_BT, mask_BT)
    if paid:
        yield from _paid(step)
    if arrived and step.heard.arrived_BF is not None:
        yield from of_advantages(step.asked, step.heard.arrived_BF, step.kl_B)


def _paid(step: "Step") -> Iterator[Specified]:
    columns = []
    for at, (_, paid) in sorted(step.heard.calls.items()):
        paid_B = torch.tensor([torch.nan if p is None else float(p) for p in paid]).double()
        columns.append(paid_B)
        yield Specified(f"pay of function {at}", paid_B)
    if columns and len(columns) == len(step.trainer.reward_funcs):
        yield Specified("pay", torch.stack(columns, 1))


def of_logprobs(step: "Step") -> Iterator[Specified]:
    """What the batch is, and the log-probs of each row alone, in the passes as well."""
    yield from of_scoring(step)
    for one in step.passes:
        mask_BT = trained(one.inputs).double().cpu()
        new_BT = torch.zeros_like(mask_BT)
        for k, row in enumerate(one.rows):
            new_BT[k, : len(step.new[row])] = step.new[row].double().cpu()
        yield Specified("log-probs", new_BT, mask_BT)
        yield from of_inputs(step.inputs, one, mask_BT)


def _padded(
    name: str, rows: Sequence[Sequence[int]], pad: int, *, left: bool
) -> Iterator[Specified]:
    """As lists, as ids and as a mask."""
    listed = tuple(torch.tensor(list(row), dtype=torch.float64) for row in rows)
    ones = tuple(torch.ones_like(row) for row in listed)
    yield Specified(f"{name} ids", listed)
    turned = (lambda rows: [row.flip(0) for row in rows]) if left else list
    for what, those, fill in (("ids", listed, float(pad)), ("mask", ones, 0.0)):
        wide = _right_padded(turned(those), fill)
        yield Specified(f"{name} {what}", wide.flip(1) if left else wide)
    yield Specified(f"{name} masks", ones)


def _on_cpu(rows: Sequence[Tensor]) -> list[Tensor]:
    return [row_T.double().cpu() for row_T in rows]


def _right_padded(rows: Sequence[Tensor], fill: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)


def _of(one: Specified) -> Tensor:
    assert isinstance(one.content, Tensor)
    return one.content
