"""A further hypothesis file: one that flatline knows, or a blank one of the user's own."""

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from flatline.config import LAB
from flatline.errors import ConfigError
from flatline.journal import board, frontmatter
from flatline.journal.entry import CODE, Entry
from flatline.journal.folder import HYPOTHESES, Journal, shown, write_text
from flatline.markdown import inline, one_line

if TYPE_CHECKING:
    from flatline.hypotheses.base import Hypothesis

LAB_MINUTES = 15.0
"""An experiment on the lab: two arms, three to six seeds, two runs at a time on two cores."""


def add(journal: Journal, what: str) -> Path:
    """A further hypothesis: one that flatline knows, or a blank one with this title."""
    with journal.lock():
        entries = journal.read().entries
        known = _known(what)
        file = add_known(journal, known, entries) if known else _add_own(journal, what, entries)
        board.refresh(journal)
    return file


def _known(what: str) -> "Hypothesis | None":
    from flatline.hypotheses import HYPOTHESES as REGISTRY
    from flatline.hypotheses import find

    names = {one.name for one in REGISTRY}
    code = re.fullmatch(r"h\d{2,4}", what.strip().lower())
    return find(what) if code or what.strip().lower() in names else None


def add_known(journal: Journal, one: "Hypothesis", entries: Iterable[Entry]) -> Path:
    """The file of a hypothesis that flatline knows, from its manual page. Under the lock."""
    entries = list(entries)
    there = next((entry for entry in entries if entry.code == one.id), None)
    if there is not None:
        raise ConfigError(
            f"{journal.path} already has {one.id}: {HYPOTHESES}/{there.file.name}.\n"
            "A code belongs to one file, or results could not be given to it.\n"
            f"Write into that file, or give it another title."
        )
    page = sections(one.manual())
    head = _front_matter(
        code=one.id,
        title=one.name.replace("-", " ").capitalize(),
        order=_last(entries) + 1,
        related=_codes(page.get("Not to be confused with", ""), one.id),
        explains=_codes(" ".join(one.explains), one.id),
        lab=(journal.setup() or {}).get("model", LAB) == LAB,
    )
    body = _blank("known").format(
        title=f"{one.id}: {one.name.replace('-', ' ').capitalize()}",
        summary=page[""],
        wrong=page.get("What goes wrong", ""),
        meaning=one.meaning,
        sign=page.get("Sign", ""),
        probe=page.get("Probe", ""),
        experiment=page.get("Experiment", ""),
        confused=page.get("Not to be confused with", ""),
        command=f"flatline investigate {one.id} --journal {shown(journal.path)}",
    )
    return _create(journal, f"{one.id.lower()}-{one.name}.md", head + body)


def _add_own(journal: Journal, title: str, entries: list[Entry]) -> Path:
    title = one_line(title, limit=120)
    if not title or CODE.fullmatch(title):
        raise ConfigError(
            f"{title!r} is no title, and no hypothesis that flatline knows.\n"
            "Type `flatline explain` for those, or a title such as "
            '`flatline journal new "Judge is moody" DIR`.'
        )
    taken = [int(entry.code[1:]) for entry in entries if entry.code.startswith("U")]
    code = f"U{max(taken, default=0) + 1:02}"
    head = _front_matter(
        code=code,
        title=title,
        order=_last(entries) + 1,
        related=[],
        explains=[],
        lab=False,
    )
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "untitled"
    return _create(
        journal,
        f"{code.lower()}-{slug}.md",
        head + _blank("own").format(title=f"{code}: {inline(title)}"),
    )


def _blank(name: str) -> str:
    return "\n" + (files("flatline.journal") / "blank" / f"{name}.md").read_text(encoding="utf-8")


def _create(journal: Journal, name: str, text: str) -> Path:
    file = journal.path / HYPOTHESES / name
    if file.exists():
        raise ConfigError(
            f"{file} exists already, with another code in its front matter or none.\n"
            "It may hold somebody's work.\nRename it, or fix its front matter."
        )
    write_text(file, text)
    return file


def _last(entries: Iterable[Entry]) -> int:
    return max((entry.order for entry in entries), default=0)


def _codes(text: str, own: str) -> list[str]:
    """Codes in a text that flatline has a hypothesis for."""
    from flatline.hypotheses import HYPOTHESES as REGISTRY

    known = {one.id for one in REGISTRY} - {own}
    return sorted(known & set(re.findall(r"H\d{2}", text)))


def sections(manual: str) -> dict[str, str]:
    """The parts of a manual page by heading; the first line under no heading at all."""
    parts = re.split(r"^## (.+)\n", manual, flags=re.MULTILINE)
    named = zip(parts[1::2], parts[2::2], strict=True)
    return {"": parts[0].strip(), **{head: text.strip() for head, text in named}}


def _front_matter(
    *,
    code: str,
    title: str,
    order: int,
    related: list[str],
    explains: list[str],
    lab: bool,
) -> str:
    return (
        f"---\ncode: {code}\ntitle: {frontmatter.quoted(title)}\n"
        f"priority: medium\nstatus: pending\nconfidence: null\norder: {order}\n"
        f"related: [{', '.join(related)}]\nexplains: [{', '.join(explains)}]\n"
        f"experiments: []\ncost_minutes: {f'{LAB_MINUTES:g}' if lab else 'null'}\n"
        'note: ""\n---\n'
    )
