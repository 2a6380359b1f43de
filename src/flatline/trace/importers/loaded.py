"""Where printed output says, between its rows, that a checkpoint was loaded."""

import re
from bisect import bisect
from collections.abc import Sequence
from pathlib import Path

from flatline.text import visible
from flatline.trace.importers.text import lines

LONGEST = 400
"""Characters of a line that is looked at; samples are longer."""
QUOTED, SELDOM = 120, 3
"""Characters of a line that are quoted, and places at most: what is said more often is usual."""
_LOADED = re.compile(
    r"\b(load(ed|ing)?|restor(ed?|ing)|resum(ed?|ing))\b.{0,40}?\b(checkpoint|ckpt|global[_ ]?step)"
    r"(?!.*shard).*",
    re.I,
)


def loaded_between(path: Path, rows: Sequence[int], steps: Sequence[str]) -> list[str]:
    """Notes on it, one for each gap between two rows, which are on these lines and of these
    steps."""
    told: dict[int, str] = {}
    for number, line in lines(path):
        found = _LOADED.search(line) if len(line) <= LONGEST else None
        gap = bisect(rows, number) if found else 0
        if found and 0 < gap < len(rows) and gap not in told and steps[gap]:
            said = visible(found[0][:QUOTED].replace("`", "'").strip())
            told[gap] = f"Before step {steps[gap]} the log says: `{said}`."
    return list(told.values()) if len(told) <= SELDOM else []
