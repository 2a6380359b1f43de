"""An experiment as a person reads it: in the log, in its hypothesis file, on a page of its own."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from flatline.journal.board import markdown_table
from flatline.journal.entry import Entry, Status, label_of, standing
from flatline.journal.folder import HYPOTHESES, RESULTS, part
from flatline.journal.results import arms_of, is_number, runs_of
from flatline.markdown import inline, target


def effect_text(effect: Any) -> str:
    """An estimate in words a person reads."""
    value, low, high = (part(effect or {}, key) for key in ("value", "low", "high"))
    if not is_number(value):
        return "not measured"
    if not (is_number(low) and is_number(high)):
        return f"{value:+.3f} (interval unknown), n = {part(effect, 'n')}"
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}], n = {part(effect, 'n')} seeds"


def log_entry(kept: Mapping[str, Any], entry: Entry | None, when: date) -> str:
    """One experiment as the log tells it."""
    verdict, plan = kept["verdict"], kept["plan"]
    title = inline(entry.title) if entry else ""
    links = f"[Numbers]({RESULTS}/{target(kept['name'])}.md)"
    if entry:
        links += f", [hypothesis]({HYPOTHESES}/{target(entry.file.name)})"
    lines = [
        f"## {when.isoformat()}: {kept['hypothesis']} {title} ({_standing(kept)})".replace(
            "  ", " "
        ),
        f"**Question.** {inline(plan.get('question') or 'Is it the cause?')}",
        f"**Arms.** {_arms_text(kept)}",
        f"**Effect.** {_effect_line(kept)}",
        f"**Verdict.** {_label(kept)}, confidence "
        f"{verdict.get('confidence') or 'unknown'}. {inline(verdict.get('reason') or '')}",
        f"**What would change it.** {inline(verdict.get('would_change') or 'Not said.')}",
        links + ".",
    ]
    return "\n\n".join(lines)


def results_text(experiments: Sequence[tuple[str, Mapping[str, Any] | None]]) -> str:
    """The results section of a hypothesis file: the verdict that stands, then each experiment."""
    blocks = [_one_result(name, kept) for name, kept in experiments]
    last = next((kept for _, kept in reversed(experiments) if kept is not None), None)
    if last is None:
        return "\n\n".join(blocks)
    verdict = last["verdict"]
    head = (
        f"**{_label(last)}**, confidence {verdict.get('confidence')}. "
        f"{inline(verdict.get('reason') or '')}"
    )
    return "\n\n".join([head, *blocks])


def _label(kept: Mapping[str, Any]) -> str:
    return label_of(kept["hypothesis"], Status(kept["verdict"]["verdict"]))


def _standing(kept: Mapping[str, Any]) -> str:
    return standing(kept["hypothesis"], Status(kept["verdict"]["verdict"])).lower()


def _one_result(name: str, kept: Mapping[str, Any] | None) -> str:
    if kept is None:
        return f"### {inline(name)}\n\nIts numbers are missing from `{RESULTS}`."
    mechanism = part(kept, "verdict", "mechanism")
    lines = [
        f"### [{inline(name)}](../{RESULTS}/{target(name)}.md)",
        "",
        f"- **Arms:** {_arms_text(kept)}",
        f"- **Effect:** {_effect_line(kept)}",
        f"- **Mechanism:** {_mechanism_text(mechanism)}",
        f"- **Verdict:** {_label(kept)}. {inline(kept['verdict'].get('reason') or '')}",
        f"- **What would change it:** {inline(kept['verdict'].get('would_change') or 'Not said.')}",
    ]
    return "\n".join(lines)


def page(kept: Mapping[str, Any], entry: Entry | None) -> str:
    """The readable page of one experiment."""
    plan, verdict = kept["plan"], kept["verdict"]
    facts = [
        ["Hypothesis", _link(kept["hypothesis"], entry)],
        ["Question", inline(plan.get("question") or "-")],
        ["Factor", inline(plan.get("factor") or "-")],
        ["Outcome", inline(plan.get("outcome") or "-")],
        ["Smallest effect that matters", inline(plan.get("smallest_effect", "-"))],
        ["Mechanism that must flip", inline(plan.get("mechanism") or "-")],
        ["Registered", inline(plan.get("registered") or "-")],
        ["Effect", _effect_line(kept)],
        ["Mechanism seen", _mechanism_text(verdict.get("mechanism"))],
        ["Verdict", f"{_label(kept)}, confidence {verdict.get('confidence')}"],
        ["Reason", inline(verdict.get("reason") or "-")],
        ["What would change it", inline(verdict.get("would_change") or "-")],
    ]
    blocks = [markdown_table(["", ""], facts), "## Arms", _arms_table(kept), "## Runs"]
    blocks.append(_runs_table(kept) or "No run was needed.")
    looks = _looks_table(kept)
    if looks:
        blocks += ["## Looks", looks]
    return "\n\n".join(blocks)


def _link(code: str, entry: Entry | None) -> str:
    if entry is None:
        return code
    return f"[{code}: {inline(entry.title)}](../{HYPOTHESES}/{target(entry.file.name)})"


def _arms_text(kept: Mapping[str, Any]) -> str:
    names = {
        role: [inline(arm.get("name")) for arm in arms_of(kept, role)]
        for role in ("control", "treated", "negative")
    }
    text = f"{' and '.join(names['control']) or 'the setup as it is'}"
    if names["treated"]:
        text += f" against {' and '.join(names['treated'])}"
    if names["negative"]:
        text += f"; negative controls: {', '.join(names['negative'])}"
    seeds = {run.get("seed") for run in runs_of(kept) if run.get("status") == "finished"}
    return f"{text}. Seeds: {', '.join(sorted(map(str, seeds))) or 'none needed'}."


def _effect_line(kept: Mapping[str, Any]) -> str:
    verdict = kept["verdict"]
    text = effect_text(verdict.get("effect"))
    outcome, smallest = part(kept, "plan", "outcome"), verdict.get("smallest_effect")
    on = f" on {inline(outcome)}" if outcome else ""
    least = f"; what matters begins at {smallest:g}" if is_number(smallest) else ""
    return f"{text}{on}{least}."


def _mechanism_text(mechanism: Any) -> str:
    if not isinstance(mechanism, Mapping):
        return "not tested"
    seen = f"{mechanism.get('control')} in the control"
    if mechanism.get("treated"):
        seen += f", {mechanism['treated']} in the treated arm"
    return inline(f"{seen}. {mechanism.get('text') or ''}".strip())


def _arms_table(kept: Mapping[str, Any]) -> str:
    rows = []
    for role in ("control", "treated", "negative"):
        for arm in arms_of(kept, role):
            changes = ", ".join(f"{name}: {value}" for name, _, value in changes_of(kept, arm))
            rows.append([inline(arm.get("name")), role, inline(changes or "the setup as it is")])
    return markdown_table(["arm", "role", "what differs from the control"], rows)


def changes_of(kept: Mapping[str, Any], arm: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Setting, value in the control, value in this arm: where the two differ."""
    control = next(iter(arms_of(kept, "control")), {})
    for key in ("config", "values"):
        was, now = part(control, key), part(arm, key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            for name in sorted({*was, *now}, key=str):
                if was.get(name) != now.get(name) and name != "seed":
                    yield str(name), _plain(was.get(name)), _plain(now.get(name))


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


def _runs_table(kept: Mapping[str, Any]) -> str:
    rows = [
        [
            inline(run.get("arm")),
            inline(run.get("seed")),
            inline(run.get("status")),
            *(_number(run.get(key)) for key in ("before", "after", "value")),
            _number(run.get("seconds"), digits=0),
            inline(f"{run.get('level') or ''} {run.get('text') or ''}".strip() or "-", limit=300),
        ]
        for run in runs_of(kept)
    ]
    head = ["arm", "seed", "status", "before", "after", "outcome", "seconds", "sign"]
    return markdown_table(head, rows) if rows else ""


def _looks_table(kept: Mapping[str, Any]) -> str:
    looks = part(kept, "result", "looks")
    rows = [
        [inline(look.get("seeds")), effect_text(look.get("effect")), _yes(look.get("settled"))]
        for look in (looks if isinstance(looks, list) else [])
        if isinstance(look, Mapping)
    ]
    return markdown_table(["seeds", "effect", "settled"], rows) if rows else ""


def _yes(value: Any) -> str:
    return "yes" if value is True else "no"


def _number(value: Any, *, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if is_number(value) else "-"
