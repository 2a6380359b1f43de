"""`flatline explain`: the manual page of a hypothesis, or what is behind a symptom."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flatline.hypotheses.symptoms import Symptom

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[Hnn]",
        help="Code or name of a hypothesis, or a symptom; without one, all are listed.",
    ),
]


def explain(hypothesis: Name = None) -> None:
    """Print the manual page of a hypothesis, what is behind a symptom, or the list of all."""
    from rich.console import Console
    from rich.markdown import Markdown

    from flatline.hypotheses import find
    from flatline.hypotheses.symptoms import symptom_of

    console = Console(highlight=False)
    if hypothesis is None:
        return console.print(_all(), markup=False)
    symptom = symptom_of(hypothesis)
    if symptom is not None:
        return console.print(Markdown(_behind(symptom)))
    found = find(hypothesis)
    console.print(Markdown(f"# {found.id} {found.name}\n\n{found.manual()}"))


def _all() -> str:
    from flatline.hypotheses import HYPOTHESES
    from flatline.hypotheses.symptoms import SYMPTOMS

    causes = [f"{one.id}  {one.name:<26} {one.manual().splitlines()[0]}" for one in HYPOTHESES]
    symptoms = [f"{one.name:<22} {one.title}" for one in SYMPTOMS]
    return "\n".join([*causes, "", "Symptoms: what is behind each", *symptoms])


def _behind(symptom: "Symptom") -> str:
    from flatline.hypotheses import find

    lines = [f"# {symptom.title}", symptom.text]
    for kind, codes in symptom.behind.items():
        causes = [
            f"- {one.id} {one.name}: {one.manual().splitlines()[0]}" for one in map(find, codes)
        ]
        lines += [f"**{kind}**", "\n".join(causes)]
    return "\n\n".join(lines)
