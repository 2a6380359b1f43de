"""One rollout token by token: who wrote what, and what is trained. All text in it is untrusted."""

from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatline.cli.show_run import number, value
from flatline.cli.text import shortened, visible
from flatline.errors import NotRecorded, TraceError
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.tokens import Tokens

STYLES = {
    Author.PROMPT: "cyan",
    Author.MODEL: "green",
    Author.TOOL: "yellow",
    Author.TEMPLATE: "blue",
}
_AUTHORS = {int(author): author for author in Author}
WORST = 5
"""Tokens listed with the largest difference between sampler and trainer."""
_LOGPROBS = ("sampler", "trainer", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """The completion tokens of one rollout; a field is None where it was not recorded."""

    ids: np.ndarray
    """Token ids."""
    author: np.ndarray | None
    """Who wrote them."""
    trained: np.ndarray | None
    """Whether they have a loss."""
    attended: np.ndarray | None
    """Whether the model could see them."""
    logprobs: dict[str, np.ndarray]
    """The log-probs that were recorded, by name."""

    @property
    def gap(self) -> np.ndarray | None:
        """Sampler minus trainer, where the model wrote the token."""
        if not {"sampler", "trainer"} <= self.logprobs.keys():
            return None
        gap = self.logprobs["sampler"].astype(float) - self.logprobs["trainer"]
        return gap if self.author is None else np.where(self.author == Author.MODEL, gap, np.nan)


def token_view(trace: Trace, row: int, name: str) -> RenderableType:
    """The rollout as text, a new line wherever the author or the masks change."""
    detail = _detail(trace, row)
    if detail is None:
        return Group(_title(trace, row), *_as_text(trace, row))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for author, marks, text in _prompt_runs(trace, row) + _runs(trace, detail):
        style = _style(author, trained=marks.startswith("loss"))
        label = "?" if author is None else author.name.lower()
        grid.add_row(Text(label, style=style), Text(marks), Text(visible(text), style=style))
    step, rollout = (int(trace.rollouts[key][row]) for key in ("step", "rollout"))
    hint = f"flatline show {name} --step {step} --rollout {rollout} --logprobs"
    return Group(_title(trace, row), _legend(), grid, Text(visible(hint), style="dim"))


def logprob_table(trace: Trace, row: int) -> RenderableType:
    """Every completion token with its log-probs, those that differ most first."""
    detail = _detail(trace, row)
    if detail is None:
        raise TraceError(
            "This rollout has no token detail.\n"
            f"Steps that have it: {_listed(trace.token_steps.tolist())}."
        )
    every = np.arange(len(detail.ids))
    shown: list[RenderableType] = [_title(trace, row)]
    worst = _worst(detail)
    if len(worst):
        heading = f"The {len(worst)} tokens where sampler and trainer differ most"
        shown += [Text(heading, style="bold"), _table(trace, detail, worst)]
    shown += [Text("All tokens", style="bold"), _table(trace, detail, every)]
    return Group(*shown)


def _title(trace: Trace, row: int) -> Text:
    rollouts = trace.rollouts
    step, rollout = (int(rollouts[key][row]) for key in ("step", "rollout"))
    parts = [f"step {step}, rollout {rollout}"]
    for name, form in (("reward", ".3f"), ("advantage", "+.3f")):
        parts.append(f"{name} {number(value(rollouts, name, row), form)}")
    for name in ("finish", "prompt_id", "gold"):
        found = value(rollouts, name, row)
        parts += [f"{name} {shortened(found, limit=60)}"] if found else []
    return Text(visible(", ".join(parts)), style="bold")


def _legend() -> Text:
    text = Text("by ")
    for author, style in STYLES.items():
        text.append(author.name.lower(), style=style).append(" ")
    text.append("| loss: trained, ")
    text.append("else dim", style="dim")
    return text.append(" | hidden: not attended\n")


def _style(author: Author | None, *, trained: bool) -> str:
    colour = "" if author is None else STYLES[author]
    return colour if trained or author is Author.PROMPT else f"dim {colour}".strip()


def _detail(trace: Trace, row: int) -> _Detail | None:
    tokens = trace.tokens(steps=[int(trace.rollouts["step"][row])])
    places = np.flatnonzero(tokens.rollout_rows == row)
    if not len(places):
        return None
    mine = tokens.row == places[0]
    logprobs = {name: _field(tokens, name, mine) for name in _LOGPROBS}
    return _Detail(
        ids=tokens.ids[mine],
        author=_field(tokens, "author", mine),
        trained=_field(tokens, "trained", mine),
        attended=_field(tokens, "attended", mine),
        logprobs={name: found for name, found in logprobs.items() if found is not None},
    )


def _field(tokens: Tokens, name: str, mine: np.ndarray) -> np.ndarray | None:
    try:
        return np.asarray(getattr(tokens, name)[mine])
    except NotRecorded:
        return None


def _runs(trace: Trace, detail: _Detail) -> list[tuple[Author | None, str, str]]:
    """Author, marks and text of every stretch of tokens that are treated alike."""
    runs: list[tuple[Author | None, str, str]] = []
    for index, token in enumerate(detail.ids):
        author, marks = _author(detail, index), _marks(detail, index)
        if runs and runs[-1][:2] == (author, marks):
            runs[-1] = (author, marks, runs[-1][2] + trace.text(token))
        else:
            runs.append((author, marks, trace.text(token)))
    return runs


def _prompt_runs(trace: Trace, row: int) -> list[tuple[Author | None, str, str]]:
    tokens = trace.tokens(steps=[int(trace.rollouts["step"][row])])
    mine = tokens.prompt_row == np.flatnonzero(tokens.rollout_rows == row)[0]
    ids, attended = (_field(tokens, name, mine) for name in ("prompt_ids", "prompt_attended"))
    if ids is None:
        text = value(trace.rollouts, "prompt", row)
        return [(Author.PROMPT, "", text)] if text else []
    author = np.full(len(ids), Author.PROMPT)
    return _runs(
        trace, _Detail(ids=ids, author=author, trained=None, attended=attended, logprobs={})
    )


def _author(detail: _Detail, index: int) -> Author | None:
    return None if detail.author is None else _AUTHORS.get(int(detail.author[index]))


def _marks(detail: _Detail, index: int) -> str:
    trained = detail.trained is not None and detail.trained[index]
    hidden = detail.attended is not None and not detail.attended[index]
    return " ".join(mark for mark, on in (("loss", trained), ("hidden", hidden)) if on)


def _as_text(trace: Trace, row: int) -> list[RenderableType]:
    """What is left to show where the step has no token detail."""
    steps = _listed(trace.token_steps.tolist())
    shown: list[RenderableType] = [
        Text(f"No token detail for this step, so text only. Steps that have it: {steps}.\n")
    ]
    for name in ("prompt", "completion"):
        text = value(trace.rollouts, name, row)
        shown += [Text(name, style="bold"), Text(visible(text or "(not recorded)"))]
    return shown


def _worst(detail: _Detail) -> np.ndarray:
    gap = np.array([]) if detail.gap is None else np.abs(detail.gap)
    order = np.argsort(-np.nan_to_num(gap, nan=-1.0, posinf=np.inf), kind="stable")[:WORST]
    return np.asarray(order[np.nan_to_num(gap[order], nan=0.0, posinf=1.0) > 0])


def _table(trace: Trace, detail: _Detail, indices: np.ndarray) -> Table:
    gap = detail.gap
    numbers = detail.logprobs | ({} if gap is None else {"difference": gap})
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("token", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("author", no_wrap=True, min_width=8)
    table.add_column("marks", no_wrap=True, min_width=6)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    for index in indices:
        cells = [
            _logprob(found[index], signed=name == "difference") for name, found in numbers.items()
        ]
        table.add_row(*_token_cells(trace, detail, index), *cells)
    return table


def _token_cells(trace: Trace, detail: _Detail, index: int) -> list[Text]:
    author, marks = _author(detail, index), _marks(detail, index)
    style = _style(author, trained="loss" in marks)
    token = visible(trace.text(detail.ids[index])).replace("\n", "\\n").replace("\t", "\\t")
    label = "?" if author is None else author.name.lower()
    return [Text(str(index)), Text(token, style=style), Text(label, style=style), Text(marks)]


def _logprob(found: float, *, signed: bool) -> str:
    if np.isnan(found):
        return "-"
    return f"{found:+.1e}" if signed and found else f"{found:.4f}"


def _listed(steps: list[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:12])
    return (shown + (", ..." if len(steps) > 12 else "")) or "none"
