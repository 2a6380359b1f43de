"""Some rollouts of the batch, where all of it would only cost.

How far moved weights shift log-probs, a few rollouts tell as well as all; whether two passes agree,
or how many times one gradient is another, half of these do. Passes over a large model are most of
what a checkup costs.
"""

from torch import Tensor

from flatline.live.measure.played import Played
from flatline.rollout.record import Author

ENOUGH = 8
"""Rollouts that will do where a size or an identity is asked for."""


def few(played: Played, group: int) -> list[int]:
    """Rollouts of whole groups, an even number of them where it can be: first the groups that have
    trained tokens with advantages and saw a tool, among those the shortest. Where some rollouts
    carry no loss, at least one group has such a one: a loss may count what it leaves out."""
    groups = [
        list(range(at, at + group)) for at in range(0, len(played.rows) - group + 1, group)
    ] or [list(range(len(played.rows)))]
    learns_B = _largest_advantage(played) > 0
    shown_B = ((played.author_BT == int(Author.TOOL)) & played.mask_BT).any(1)
    length_B = played.mask_BT.sum(1) + (played.inputs["prompt_mask"] != 0).sum(1).cpu()

    def last(rows: list[int]) -> tuple[bool, bool, int]:
        learns, shown = bool(learns_B[rows].any()), bool(shown_B[rows].any())
        return not (learns and shown), not learns, int(length_B[rows].max())

    needed = -(-ENOUGH // group)
    needed += needed * group % 2
    order = sorted(groups, key=last)
    bare_B = ~played.trained_BT.any(1)
    uneven = [rows for rows in order[: None if needed > 1 else 1] if bool(bare_B[rows].any())]
    if uneven and uneven[0] not in order[:needed]:
        order.insert(needed - 1, uneven[0])
    return sorted(row for rows in order[:needed] for row in rows)


def together(size: int, whole: Played, some: Played) -> int:
    """How many of these, which are shorter, fit where `size` rollouts of the batch do: a pass of so
    many needs no more memory than one of training, and there are fewer of them."""
    shorter = [a / max(b, 1) for a, b in zip(_widths(whole), _widths(some), strict=True)]
    return int(size * min(shorter))


def _widths(played: Played) -> tuple[int, int]:
    """Tokens of a row, and those of its completion alone, whose logits take the most memory."""
    prompt, completion = (
        played.inputs[f"{name}_ids"].shape[1] for name in ("prompt", "completion")
    )
    return prompt + completion, completion


def half(played: Played) -> list[int]:
    """Half of the rollouts, an even number of them, or all where that leaves none: those with the
    largest advantages, for without any there is no gradient."""
    rows = len(played.rows)
    order_B = _largest_advantage(played).argsort(descending=True, stable=True)
    return sorted(order_B[: rows // 4 * 2 or rows].tolist())


def _largest_advantage(played: Played) -> Tensor:
    """Of the trained tokens of each rollout; 0 where none is trained."""
    return (played.advantage_BT.abs() * played.trained_BT).amax(1)
