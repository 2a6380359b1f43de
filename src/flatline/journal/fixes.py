"""What to change for a validated cause: the change, the evidence, and why it works."""

from collections.abc import Mapping
from typing import Any

from flatline.errors import ConfigError
from flatline.journal.board import markdown_table
from flatline.journal.entry import Entry
from flatline.journal.folder import HYPOTHESES, RESULTS, part
from flatline.journal.new import sections
from flatline.journal.pages import changes_of, effect_text
from flatline.journal.results import arms_of
from flatline.markdown import inline, target


def fix_text(kept: Mapping[str, Any], entry: Entry) -> str:
    """The body of `fixes/hNN-name.md`."""
    page = _manual(entry.code)
    return "\n\n".join(
        [
            "## What to change",
            *([page["fix"], page["Fix"]] if page else []),
            _tried(kept),
            "## Evidence",
            _evidence(kept, entry),
            "## Why it works",
            *([page["What goes wrong"], page["meaning"]] if page else []),
            f"Seen in the runs: {inline(part(kept, 'verdict', 'mechanism', 'text') or 'nothing')}",
        ]
    )


def _manual(code: str) -> dict[str, str] | None:
    """Sections of the manual page; None for a hypothesis of the user's own."""
    from flatline.hypotheses import find
    from flatline.hypotheses.wording import FLATLINE, worded

    try:
        one = find(code)
    except ConfigError:
        return None
    return {"Fix": "", "What goes wrong": "", **sections(one.manual())} | {
        "fix": worded(one.fix, FLATLINE),
        "meaning": one.meaning,
    }


def _tried(kept: Mapping[str, Any]) -> str:
    treated = next(iter(arms_of(kept, "treated")), None)
    if treated is None:
        return "No arm was fixed: this says where to look, not yet what to change."
    rows = [[f"`{name}`", inline(was), inline(now)] for name, was, now in changes_of(kept, treated)]
    if not rows:
        return f"The fixed arm was {inline(treated.get('name') or 'not named')}."
    table = markdown_table(["setting", "as it was", "fixed"], rows)
    return f"The fixed arm of the experiment differs in this alone:\n\n{table}"


def _evidence(kept: Mapping[str, Any], entry: Entry) -> str:
    verdict = kept["verdict"]
    return "\n".join(
        [
            f"- Effect: {effect_text(verdict.get('effect'))}.",
            f"- {inline(verdict.get('reason') or 'No reason was given.')}",
            f"- Numbers: [{inline(kept['name'])}](../{RESULTS}/{target(kept['name'])}.md).",
            f"- Hypothesis: [{entry.code}: {inline(entry.title)}]"
            f"(../{HYPOTHESES}/{target(entry.file.name)}).",
        ]
    )
