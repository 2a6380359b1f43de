"""A report as a notebook shows it: `report` on the last line of a cell.

Text may have been written by a model and a notebook runs what it is given, so every text is made
visible and escaped, and there is no script and no link. Styles stand on the elements: notebooks
and their viewers drop style sheets. Colours are the notebook's own, so light and dark both work;
only the two words of a level have a background, and bring their own text colour.
"""

from collections.abc import Iterable, Mapping
from html import escape

from flatline.found import Found
from flatline.hypotheses.base import Evidence, Finding
from flatline.text import shortened, visible

_LONGEST = 400
"""Characters of one example."""
_BADGES = {"fault": ("#b3261e", "#ffffff"), "suspect": ("#8a5a00", "#ffffff")}
"""Background and text of a level; 6.5 and 5.9 to 1."""
_REST = {"note": "Worth knowing", "ok": "Ruled out", "unknown": "Could not be tested"}
_CARD = "border-left:3px solid {};padding:0 0 0 .8em;margin:.8em 0"
_BOX = "max-width:60em;line-height:1.45"


def to_html(found: Found, summary: str, explained: Mapping[str, str]) -> str:
    """The answer, each alarm with its evidence, then the rest folded away."""
    alarms = (_alarm(one, explained.get(one.hypothesis)) for one in found.alarms)
    rest = (
        _rest(title, [one for one in found.findings if one.level.value == level])
        for level, title in _REST.items()
    )
    head = f'<p style="font-weight:bold">{_text(summary)}</p>'
    minded = "".join(f"<div>Mind: {_text(text)}</div>" for text in found.caveats)
    return f'<div style="{_BOX}">{head}{minded}{"".join(alarms)}{"".join(rest)}</div>'


def _alarm(finding: Finding, cause: str | None) -> str:
    back, front = _BADGES[finding.level.value]
    badge = (
        f'<span style="background:{back};color:{front};padding:0 .4em;border-radius:3px">'
        f"{finding.level.value.upper()}</span>"
    )
    symptom = f" (a symptom of {_text(cause)})" if cause else ""
    head = f"{badge} <b>{_text(finding.hypothesis)} {_text(finding.name)}</b>{symptom}"
    lines = _lines(finding, symptom=cause is not None)
    body = f"<div>{head}</div>{lines}{_where(finding)}{_examples(finding)}"
    return f'<div style="{_CARD.format(back)}">{body}</div>'


def _lines(finding: Finding, *, symptom: bool) -> str:
    lines = [("seen", finding.text), ("healthy", finding.expected)]
    if not symptom:
        lines += [("matters", finding.meaning), ("do", finding.fix)]
    told = (f"<div><i>{label}</i> {_text(text)}</div>" for label, text in lines if text)
    return "".join(told)


def _where(finding: Finding) -> str:
    told = (f"<div><i>where</i> <code>{_text(str(one))}</code></div>" for one in finding.where)
    return "".join(told)


def _examples(finding: Finding) -> str:
    if not finding.evidence:
        return ""
    return _folded(f"Examples: {len(finding.evidence)}", map(_example, finding.evidence))


def _example(one: Evidence) -> str:
    named = (("step", one.step), ("rollout", one.rollout))
    place = ", ".join(f"{name} {number}" for name, number in named if number is not None)
    return f"{place} {_text(shortened(one.text, limit=_LONGEST))}"


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
