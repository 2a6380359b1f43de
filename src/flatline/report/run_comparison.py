"""Two runs on one page: what `flatline report A --compare B` and the live page say about them."""

from typing import Any

from flatline.report import compare
from flatline.report.series import Run


def comparison(first: Run, second: Run) -> dict[str, Any]:
    """What the macros of `_compared.html` show. The sentences speak of the second run."""
    heldout = compare.heldout_difference(first, second)
    called = f"“{second.name}”"
    parting = compare.parting(first.trace, second.trace, called)
    said = [compare.heldout_text(heldout, called)] if heldout else []
    return {
        "names": (first.name, second.name),
        "sentences": [*said, *([parting.text] if parting else [])],
        "looks": parting.looks if parting else 0,
        "settings": compare.settings_that_differ(first.trace, second.trace),
        "charts": compare.overlays(first.trace, second.trace, (first.name, second.name)),
    }
