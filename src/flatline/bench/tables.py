"""Markdown tables."""

from collections.abc import Iterator, Sequence


def table_head(names: Sequence[str]) -> Iterator[str]:
    """The first two lines of a table."""
    yield table_row(names)
    yield "|---" * len(names) + "|"


def table_row(cells: Sequence[object]) -> str:
    """One line of it, whatever the cells hold."""
    clean = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(clean)} |"
