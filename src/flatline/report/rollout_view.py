"""One rollout as a page shows it: the conversation, what it earned, and every token of it."""

from typing import Any

import numpy as np
from markupsafe import Markup

from flatline.errors import TraceError
from flatline.report.conversation import Stretch, turns_of
from flatline.report.pages import standalone
from flatline.report.token_columns import TokenColumns, token_columns
from flatline.rollout.record import Author
from flatline.text import shortened, visible
from flatline.trace import Trace

PAGE = 8192
"""Tokens on one page; a longer completion is shown in several."""
LONGEST_TOKEN = 400
"""Characters shown of one token: a vocabulary may hold anything."""
AUTHORS = {int(author): author.name.lower() for author in Author}
_MODES = {
    "difference": "sampler − trainer",
    "author": "author",
    "trained": "trained or not",
    "attended": "seen by the trainer",
    "sampler": "sampler log-prob",
    "trainer": "trainer log-prob",
    "reference": "reference log-prob",
    "old": "old log-prob",
    "advantage": "advantage",
}
_FACTS = {
    "hops": "hops",
    "turns": "turns",
    "tool_calls": "tool calls",
    "tool_errors": "tool errors",
    "malformed_calls": "malformed calls",
    "malformed_answers": "malformed answers",
    "documents_dropped": "documents left out for the context",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "completion tokens",
    "model_tokens": "written by the model",
    "trained_tokens": "trained",
    "weight_version": "weights of step",
}
_ONLY_IF_ANY = ("tool_errors", "malformed_calls", "malformed_answers", "documents_dropped")


def rollout_data(trace: Trace, step: int, rollout: int, *, first: int = 0) -> dict[str, Any]:
    """All that the macro of `_rollout.html` shows; tokens from `first` on."""
    row = find_row(trace, step, rollout)
    values = row_values(trace, row)
    tokens = token_columns(trace, step, rollout)
    prompt = _prompt_text(trace, values, tokens)
    return {
        "key": f"{step}-{rollout}",
        "step": step,
        "rollout": rollout,
        **{name: values[name] for name in ("group", "prompt_id", "reward", "advantage")},
        **{name: values[name] for name in ("finish", "gold")},
        "parts": sorted((values["parts"] or {}).items()),
        "facts": _facts(values),
        "turns": turns_of(prompt, _completion(trace, values, tokens), values["gold"]),
        "tokens": _token_data(trace, values, tokens, first) if tokens else None,
        "token_steps": [] if tokens else trace.token_steps[:12].tolist(),
        "prompt_runs": _prompt_runs(trace, tokens, prompt),
    }


def render_rollout(trace: Trace, step: int, rollout: int) -> Markup:
    """The same as markup, for a page that carries `tokens.css` and `tokens.js`."""
    macro = standalone().get_template("_rollout.html").module.rollout_view  # type: ignore[attr-defined]
    return Markup(macro(rollout_data(trace, step, rollout)))


def find_row(trace: Trace, step: int, rollout: int) -> int:
    """Its row in `trace.rollouts`."""
    if not len(trace.rollouts):
        raise TraceError(
            "This trace has no rollouts, only what was logged for every step.\n"
            "Record the run with `flatline.attach(trainer, run_dir)` to see them."
        )
    at_step = trace.rollouts["step"] == step
    found = np.flatnonzero(at_step & (trace.rollouts["rollout"] == rollout))
    if not len(found):
        steps = trace.rollouts["step"]
        raise TraceError(
            f"Step {step} has no rollout {rollout}: it has {int(at_step.sum())} rollouts.\n"
            f"Steps with rollouts go from {steps.min():.0f} to {steps.max():.0f}."
        )
    return int(found[0])


def row_values(trace: Trace, row: int) -> dict[str, Any]:
    """Every column of one rollout, read without the rows around it."""
    pieces, at = trace.tables["rollouts"], np.array([row])
    found = {name: pieces.gather(name, at)[0].as_py() for name in pieces.schema.names}
    return {**found, "parts": dict(found["parts"] or [])}


def _facts(values: dict[str, Any]) -> list[tuple[str, Any]]:
    said = {name: values[name] for name in _FACTS if values[name] or name not in _ONLY_IF_ANY}
    facts = [(_FACTS[name], value) for name, value in said.items() if value is not None]
    if values["supporting"] is not None and values["supporting_seen"] is not None:
        seen = f"{values['supporting_seen']} of {values['supporting']}"
        facts.insert(1, ("supporting documents seen", seen))
    if values["as_sampled"] == 0:
        facts.append(("trained as sampled", "no: on other ids"))
    return facts


def _prompt_text(trace: Trace, values: dict[str, Any], tokens: TokenColumns | None) -> str:
    if values["prompt"] is not None or tokens is None or tokens.prompt_ids is None:
        return values["prompt"] or ""
    return trace.decode(tokens.prompt_ids)


def _completion(trace: Trace, values: dict[str, Any], tokens: TokenColumns | None) -> list[Stretch]:
    if tokens is None or tokens.author is None:
        return [(None, values["completion"] or "")]
    return [(author, trace.decode(ids)) for author, ids in tokens.stretches()]


def _token_data(
    trace: Trace, values: dict[str, Any], tokens: TokenColumns, first: int
) -> dict[str, Any]:
    total = len(tokens.ids)
    first = min(max(first, 0), max(total - 1, 0)) // PAGE * PAGE
    last = min(first + PAGE, total)
    numbers = tokens.numbers(first, last)
    known = [*numbers, *(["advantage"] if values["advantage"] is not None else [])]
    return {
        "first": first,
        "last": last,
        "total": total,
        "page": PAGE,
        "spans": [_span(trace, tokens, at) for at in range(first, last)],
        "modes": [(mode, label) for mode, label in _MODES.items() if mode in known],
        "missing": [label for mode, label in _MODES.items() if mode not in (*known, "old")],
        "worst": tokens.worst,
        "data": {
            "first": first,
            "numbers": numbers,
            "worst": tokens.worst,
            "advantage": values["advantage"],
            "authors": AUTHORS,
        },
    }


def _span(trace: Trace, tokens: TokenColumns, at: int) -> tuple[str, str]:
    """Class and text of one token."""
    author = "" if tokens.author is None else f" a{int(tokens.author[at])}"
    trained = " tr" if tokens.trained is not None and tokens.trained[at] else ""
    hidden = " hid" if tokens.attended is not None and not tokens.attended[at] else ""
    return f"t{author}{trained}{hidden}", token_text(trace.text(tokens.ids[at]))


def token_text(text: str) -> str:
    """A token so that line breaks and nothing at all can be seen."""
    shown = visible(shortened(text, limit=LONGEST_TOKEN))
    return shown.replace("\n", "↵\n").replace("\t", "⇥\t") or "∅"


def _prompt_runs(trace: Trace, tokens: TokenColumns | None, prompt: str) -> list[tuple[bool, str]]:
    """The prompt cut where its visibility changes: hidden from the trainer or not, and the text."""
    if tokens is None or tokens.prompt_ids is None or tokens.prompt_attended is None:
        return [(False, prompt)] if prompt else []
    cuts = np.flatnonzero(np.diff(tokens.prompt_attended)) + 1
    starts = [0, *cuts.tolist()] if len(tokens.prompt_ids) else []
    return [
        (not tokens.prompt_attended[at], trace.decode(ids))
        for at, ids in zip(starts, np.split(tokens.prompt_ids, cuts), strict=False)
    ]
