"""Faults that are one thing seen twice: another hypothesis that names them is not wrong.

Written before the benchmark was run. The strict figures do not use it; the report shows both.
"""

from bench.plan import Cell

ALIKE: dict[str, tuple[str, str]] = {
    "adapter-frozen": ("H26", "a frozen half is a tensor that the optimizer does not move"),
    "sampler-every-n": ("H06", "before its first delivery it is a sampler that gets none"),
    "kl-anchor": ("H03", "both are a beta that is too large"),
    "kl-heavy": ("H31", "both are a beta that is too large"),
    "merge-rounded": ("H20", "a rounded merge is a sampler with rounded weights"),
    "updates-rounded": ("H26", "an update that is rounded away is a step that is not taken"),
}
"""Fault -> the other hypothesis, and why."""


def accepted(cell: Cell) -> frozenset[str]:
    """Hypotheses that name a cell's first fault, look-alikes among them."""
    others = [ALIKE[name][0] for name in cell.planted if name in ALIKE]
    return frozenset((*cell.first, *others))
