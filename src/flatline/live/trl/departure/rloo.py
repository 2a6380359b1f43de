"""What RLOO keeps of a completion as a whole: one old log-prob, and a KL inside the reward.

GRPO hands its loss the log-probs of every token. RLOO hands on the sum of the old ones only, and
takes the KL off the reward before there is an advantage; the log-probs that both come from are
heard where the trainer takes them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flatline.live.hooks import Patch
from flatline.live.stage_found import StageFound, departs, same
from flatline.live.trl.departure.scored import Row
from flatline.live.trl.grpo import scored, scorer_of
from flatline.spec.numerics import Tolerance
from flatline.spec.ratio import distance


@contextmanager
def hearing_scores(trainer: Any) -> Iterator[list[Tensor]]:
    """The log-probs of a batch that are taken without a gradient: the policy's, and then, where
    there is a KL, the reference's."""
    heard: list[Tensor] = []

    def scoring(score: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = score(*args, **kwargs)
        if not torch.is_grad_enabled():
            heard.append(scored(found)[0].detach())
        return found

    with Patch(trainer, scorer_of(trainer), scoring):
        yield heard


def distances(
    rows: Sequence[Row], old: Sequence[Tensor], reference: Sequence[Tensor] | None
) -> Tensor | None:
    """Of each row from the reference; None without one."""
    if reference is None:
        return None
    each = [
        distance(a_T[: len(row.completion)], b_T[: len(row.completion)], row.mask_T.to(a_T.device))
        for row, a_T, b_T in zip(rows, old, reference, strict=True)
    ]
    return torch.stack(each).double().cpu()


def summed(values: Sequence[Tensor], rows: Sequence[Row]) -> Tensor:
    """Of each row's trained tokens."""
    pairs = zip(values, rows, strict=True)
    return torch.stack([(one_T * row.mask_T.to(one_T.device)).sum() for one_T, row in pairs])


def judge_old(
    found_B: Tensor, expected: Sequence[Tensor], rows: Sequence[Row], limit: Tolerance
) -> StageFound:
    """The old log-prob of each completion against that of the row scored alone, by its tokens."""
    tokens_B = torch.tensor([max(1, int(row.mask_T.sum())) for row in rows])
    expected_B = summed(expected, rows).double().cpu()
    off_B = (found_B.detach().double().cpu() - expected_B).abs() / tokens_B
    mean, at = float(off_B.mean()), int(off_B.argmax())
    text = f"the old log-probs of whole completions differ by {mean:.2g} nats a token"
    if mean <= limit.logprob and float(off_B.max()) <= limit.logprob_worst:
        return same("log-probs", f"{text[0].upper()}{text[1:]}.", mean, limit.logprob)
    return departs(
        "log-probs",
        f"Against each row scored alone, {text}; rounding explains {limit.logprob:.2g}.",
        f"row {at}, {int(tokens_B[at])} tokens: old log-prob expected {float(expected_B[at]):.4f}, "
        f"found {float(found_B[at]):.4f}",
        measured=mean,
        limit=limit.logprob,
    )
