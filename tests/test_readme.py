"""The README says what is so."""

import re
from pathlib import Path

from flatline.cli import app
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import HasProbe, HasSign, Hypothesis

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def row(one: Hypothesis) -> str:
    looks = {
        "trace": isinstance(one, HasSign),
        "live trainer": isinstance(one, HasProbe),
        "first batch": one.on_one_batch and not isinstance(one, HasProbe),
    }
    where = ", ".join(name for name, can in looks.items() if can) or "`checkup --ladder`"
    return f"| {one.id} | `{one.name}` | {one.manual().splitlines()[0]} | {where} |"


def test_the_table_of_hypotheses_is_what_the_registry_says():
    missing = [row(one) for one in HYPOTHESES if row(one) not in README]
    assert not missing, "paste into the README:\n" + "\n".join(missing)


def test_its_counts_of_what_a_checkup_asks_are_those_of_the_table():
    probing, judging = (README.count(f"{where} |\n") for where in ("live trainer", "first batch"))
    text = f"asks {probing + judging}: {probing} probe the live trainer, {judging}\njudge"
    assert text in README
    *first, last = [one.id for one in HYPOTHESES if not isinstance(one, HasSign)]
    assert f"all of these but {', '.join(first)} and {last}." in README


def test_every_command_it_names_exists():
    known = {command.callback.__name__ for command in app.registered_commands}
    known |= {group.typer_instance.info.name for group in app.registered_groups}
    typed = "".join(re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL))
    named = set(re.findall(r"^flatline ([a-z]+)", typed, flags=re.MULTILINE))
    assert named and named <= known


def test_every_page_it_links_exists():
    linked = re.findall(r"\]\((docs/[^)#]+)\)", README)
    assert linked and all((ROOT / page).is_file() for page in linked)


def test_every_benchmark_it_names_exists():
    named = re.findall(r"benchmarks/\w+\.py", README)
    assert named and all((ROOT / name).is_file() for name in named)
