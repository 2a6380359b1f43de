"""Several runs on the terminal: one table, and what differs between them."""

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatline.cli.delivery import FAILED, PASSED
from flatline.cli.output import print_json
from flatline.cli.text import visible
from flatline.diagnosis.renderers.ci.fail_on import FailOn, fails
from flatline.errors import TraceError

if TYPE_CHECKING:  # it would bring numpy
    from flatline.diagnosis.several import Several


def tell_several(runs: list[str], *, json: bool, fail_on: FailOn, correct: str | None) -> int:
    """Print them; the exit code is that of the worst run."""
    from flatline.diagnosis.several import diagnose_several

    several = diagnose_several(runs, correct=correct)
    if not several.reports:
        reasons = "\n".join(several.unread.values())
        raise TraceError(f"None of these {len(runs)} is a run or a log.\n{reasons}")
    if json:
        print_json(several.to_json())
    else:
        _print(several)
    return FAILED if any(fails(report, fail_on) for report in several.reports) else PASSED


def _print(several: "Several") -> None:
    from flatline.diagnosis.several import answer_in_short, trend_in_short

    table = Table(box=box.SIMPLE_HEAD)
    for column in ("run", "answer", "training reward"):
        table.add_column(column, overflow="fold")
    for name, report in zip(several.names, several.reports, strict=True):
        cells = (name, answer_in_short(report), trend_in_short(report))
        table.add_row(*(Text(visible(cell)) for cell in cells))
    console = Console(highlight=False)
    console.print(table)
    console.print(Text("What differs", style="bold"))
    for text in several.differs or ("Nothing that these runs recorded.",):
        console.print(Text(visible(f"  {text}")))
    for why in several.unread.values():
        console.print(Text(visible(f"Left out: {why}")))
