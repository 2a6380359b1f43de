"""Which rows of the data a step is made of.

GRPO (Shao et al., 2024, section 4.1) samples G completions for each question: a generation is made
of whole groups, each of one question. An epoch visits every question; what is left over when the
last generation cannot be filled is left out.
"""

from collections.abc import Hashable, Sequence


def broken_groups(rows: Sequence[Hashable], group: int) -> list[int]:
    """Groups, by number, that are not one row `group` times."""
    groups = [rows[at : at + group] for at in range(0, len(rows), group)]
    return [
        number
        for number, members in enumerate(groups)
        if len(members) != group or len(set(members)) != 1
    ]


def visited_at_least(rows_in_data: int, prompts_in_generation: int) -> int:
    """Different rows of an epoch: all that fill whole generations."""
    return rows_in_data - rows_in_data % prompts_in_generation
