"""`flatline explain`: the manual page of a hypothesis."""

from typing import Annotated

import typer

Name = Annotated[
    str | None, typer.Argument(metavar="[Hnn]", help="Code or name; without one, all are listed.")
]


def explain(hypothesis: Name = None) -> None:
    """Print the manual page of a hypothesis, or the list of all."""
    from rich.console import Console
    from rich.markdown import Markdown

    from flatline.hypotheses import HYPOTHESES, find

    console = Console(highlight=False)
    if hypothesis is None:
        for one in HYPOTHESES:
            console.print(f"{one.id}  {one.name:<26} {one.manual().splitlines()[0]}", markup=False)
        return
    found = find(hypothesis)
    console.print(Markdown(f"# {found.id} {found.name}\n\n{found.manual()}"))
