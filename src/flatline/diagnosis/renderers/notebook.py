"""A report as a notebook shows it: `report` on the last line of a cell.

Text may have been written by a model and a notebook runs what it is given, so every text is made
visible and escaped, and there is no script and no link. Styles stand on the elements: notebooks
and their viewers drop style sheets. Colours of text are the notebook's own, so light and dark both
work.
"""

from collections.abc import Iterable, Sequence
from html import escape

from flatline.diagnosis.answer import Line, also, answer_of, lines_of, named
from flatline.diagnosis.found import Found
from flatline.hypotheses.base import Finding
from flatline.text import visible

_EDGES = {"fault": "#b3261e", "suspect": "#8a5a00"}
"""Colour beside what was found, by its level."""
_REST = {"note": "Worth knowing", "ok": "Ruled out", "unknown": "Could not be tested"}
_CARD = "border-left:3px solid {};padding:0 0 0 .8em;margin:.8em 0"
_BOX = "max-width:60em;line-height:1.45"


def to_html(found: Found) -> str:
    """The answer, the other causes, then the rest folded away."""
    answer = answer_of(found)
    others = (
        _cause(also(one), named(one), lines_of(one), one.level.value) for one in answer.others
    )
    rest = (
        _rest(title, [one for one in found.findings if one.level.value == level])
        for level, title in _REST.items()
    )
    level = answer.cause.level.value if answer.cause else ""
    code = named(answer.cause) if answer.cause else ""
    lead = _cause(answer.headline, code, answer.lines, level)
    notes = [*(f"Note: {text}" for text in found.caveats), found.question, answer.untested]
    said = "".join(f"<div>{_text(text)}</div>" for text in notes if text)
    said += _folded("What the numbers say", map(_text, found.remarks)) if found.remarks else ""
    follows = _rest("Follows from it", list(answer.symptoms))
    return f'<div style="{_BOX}">{lead}{"".join(others)}{said}{follows}{"".join(rest)}</div>'


def _cause(headline: str, code: str, lines: Sequence[Line], level: str) -> str:
    """A headline with what belongs to it."""
    head = f"<p><b>{_text(headline)}</b> {_text(code)}</p>"
    told = "".join(f"<div><i>{line.label}</i> {_text(line.text)}</div>" for line in lines)
    return f'<div style="{_CARD.format(_EDGES.get(level, "gray"))}">{head}{told}</div>'


def _rest(title: str, findings: list[Finding]) -> str:
    if not findings:
        return ""
    listed = sorted(findings, key=lambda one: one.hypothesis)
    lines = (f"<b>{_text(f.hypothesis)} {_text(f.name)}</b> {_text(f.text)}" for f in listed)
    return _folded(f"{title}: {len(findings)}", lines)


def _folded(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f"<details><summary>{title}</summary><ul>{items}</ul></details>"


def _text(text: str) -> str:
    return escape(visible(text))
