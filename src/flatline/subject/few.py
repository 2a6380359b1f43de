"""Some groups of the batch, where all of it would only cost.

Whether two passes agree, or how many times one gradient is another, a few rollouts tell as well as
all. Passes over a large model are most of what a checkup costs.
"""

from flatline.rollout.record import Author
from flatline.subject.scoring import Played

ENOUGH = 8
"""Rollouts that will do where a size or an identity is asked for."""


def few(played: Played, group: int) -> list[int]:
    """Rollouts of whole groups, an even number of them where it can be: first the groups that have
    advantages and saw a tool, among those the shortest."""
    groups = [
        list(range(at, at + group)) for at in range(0, len(played.rows) - group + 1, group)
    ] or [list(range(len(played.rows)))]
    advantage = played.inputs["advantages"].detach().abs().cpu()
    learns_B = (advantage if advantage.dim() == 1 else advantage.amax(1)) > 0
    shown_B = ((played.author_BT == int(Author.TOOL)) & played.mask_BT).any(1)
    length_B = played.mask_BT.sum(1) + (played.inputs["prompt_mask"] != 0).sum(1).cpu()

    def last(rows: list[int]) -> tuple[bool, bool, int]:
        learns, shown = bool(learns_B[rows].any()), bool(shown_B[rows].any())
        return not (learns and shown), not learns, int(length_B[rows].max())

    needed = -(-ENOUGH // group)
    needed += needed * group % 2
    return sorted(row for rows in sorted(groups, key=last)[:needed] for row in rows)
