"""Figures that the measurements found; printed at the end of the run."""

LINES: list[str] = []


def report(line: str) -> None:
    LINES.append(line)
