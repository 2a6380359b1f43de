"""Evaluations as tables."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatline.cli.text import visible
from flatline.tasks.base import COMBINED

if TYPE_CHECKING:  # these would bring numpy
    from flatline.evaluate import Comparison, Evaluation
    from flatline.stats import Estimate


def evaluation_tables(evaluation: "Evaluation") -> RenderableType:
    """Everything an evaluation found, in the order of interest."""
    about = evaluation.about
    named = ", ".join(str(about[key]) for key in ("model", "task", "datasets") if key in about)
    count = f"{len(evaluation.problems)} problems x {evaluation.samples}"
    title = f"{named}: {count}, seed {about.get('seed')}"
    chances = {f"pass@{k}": chance for k, chance in evaluation.pass_at_k.items()}
    spread = {"group std": evaluation.group_std} if evaluation.samples > 1 else {}
    return Group(
        _heading(title),
        _estimates({**evaluation.parts, **chances, **spread}),
        _heading("by number of hops"),
        _per_hop(evaluation.per_hop),
        _counts("finish", evaluation.finish),
        _counts("events", evaluation.events),
        Text(f"speed   {_speed(evaluation)}"),
    )


def comparison_table(comparison: "Comparison") -> RenderableType:
    """Differences; one whose interval excludes 0 stands out."""
    title = f"{comparison.model} minus {comparison.minus}, paired by problem and random numbers"
    return Group(_heading(title), _estimates(comparison.parts, signed=True))


def _heading(text: str) -> Text:
    return Text(visible(text), style="bold")


def _estimates(rows: Mapping[str, "Estimate"], *, signed: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in ("mean", "95 % interval", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, estimate in rows.items():
        clear = signed and not estimate.low <= 0 <= estimate.high
        style = "bold" if name == COMBINED or clear else ""
        value = f"{estimate.value:{'+' if signed else ''}.3f}"
        table.add_row(Text(visible(name)), value, _interval(estimate), str(estimate.n), style=style)
    return table


def _per_hop(per_hop: Mapping[int, Mapping[str, "Estimate"]]) -> Table:
    """One row a part, one column a hop count: parts are many, hop counts few."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    names = list(dict.fromkeys(name for parts in per_hop.values() for name in parts))
    for hops, parts in per_hop.items():
        n = parts[COMBINED].n
        table.add_column(f"{hops} (n={n})", justify="right", no_wrap=True)
    for name in names:
        cells = [_short(parts.get(name)) for parts in per_hop.values()]
        table.add_row(
            Text(visible(name)), *map(Text, cells), style="bold" if name == COMBINED else ""
        )
    return table


def _interval(estimate: "Estimate") -> str:
    if not math.isfinite(estimate.low):
        return "unknown"
    return f"{estimate.low:.3f} to {estimate.high:.3f}"


def _short(estimate: "Estimate | None") -> str:
    if estimate is None:
        return "-"
    if not math.isfinite(estimate.low):
        return f"{estimate.value:.2f}"
    # Without the leading zeros four hop counts fit on a terminal of 80 columns.
    low, high = (f"{end:.2f}".removeprefix("0") for end in (estimate.low, estimate.high))
    return f"{estimate.value:.2f} [{low}, {high}]"


def _counts(name: str, counts: Mapping[str, int]) -> Text:
    listed = ", ".join(f"{key} {count}" for key, count in counts.items() if count)
    return Text(visible(f"{name:<7} {listed or 'none'}"))


def _speed(evaluation: "Evaluation") -> str:
    if not evaluation.seconds:
        return f"{evaluation.tokens} tokens"
    rate = evaluation.tokens / evaluation.seconds
    return f"{rate:,.0f} tokens/s ({evaluation.tokens:,} in {evaluation.seconds:.1f} s)"
