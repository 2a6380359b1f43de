"""A recorded run as a summary, and one step of it as a table. All text in it is untrusted."""

import math
import re
import shutil
from typing import Any, Literal

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatline.cli.text import shortened, visible
from flatline.errors import TraceError
from flatline.trace import Trace
from flatline.trace.frames import Frame

_COLUMNS = {
    "rollout": 7,
    "reward": 6,
    "adv.": 5,
    "finish": 11,
    "tools": 5,
    "tokens": 6,
    "trained": 7,
}
"""Widths, so that the groups of a step stand under one another."""
_TAKEN = sum(_COLUMNS.values()) + 2 * len(_COLUMNS)
_LAST_TOKEN = re.compile(r"<\|\w+\|>\s*$")
_CELL = 28
"""Characters shown of a setting."""


def summary(trace: Trace, name: str) -> RenderableType:
    """What the run was, how its reward went, and what can be asked of the trace."""
    return Group(
        Text(visible(name), style="bold"),
        *(Text(visible(line)) for line in _facts(trace)),
        Text(),
        Text("Settings", style="bold"),
        _settings(trace.settings),
        Text("Recorded", style="bold"),
        _tables(trace),
        Text(visible(_next(trace, name)), style="dim"),
    )


def rollouts_of(trace: Trace, name: str, step: int) -> RenderableType:
    """The rollouts of a step, group by group."""
    rows = _rows_of(trace, step)
    groups = trace.groups()
    shown: list[RenderableType] = []
    for group in dict.fromkeys(groups.index[rows].tolist()):
        members = rows[groups.index[rows] == group]
        shown += [_group_title(trace.rollouts, members), _group_table(trace.rollouts, members)]
    hint = f"flatline show {name} --step {step} --rollout {_whole(trace.rollouts, rows[0])}"
    return Group(*shown, Text(visible(hint), style="dim"))


def find_rollout(trace: Trace, step: int, rollout: int) -> int:
    """Its row in `trace.rollouts`."""
    rows = _rows_of(trace, step)
    numbers = trace.rollouts["rollout"][rows]
    found = rows[numbers == rollout]
    if not len(found):
        raise TraceError(
            f"Step {step} has no rollout {rollout}.\n"
            f"It has {len(rows)}, numbered {numbers.min():.0f} to {numbers.max():.0f}."
        )
    return int(found[0])


def value(frame: Frame, column: str, row: int) -> Any:
    """One value; None where it was not recorded."""
    if column not in frame:
        return None
    found = frame[column][row]
    return None if isinstance(found, float) and math.isnan(found) else found


def number(found: Any, form: str = ".3f") -> str:
    """A number for a narrow column."""
    return "-" if found is None else f"{found:{form}}"


def _rows_of(trace: Trace, step: int) -> np.ndarray:
    if not len(trace.rollouts):
        raise TraceError(
            "This trace has no rollouts, only what was logged for every step.\n"
            "Leave --step out to see that, or record the run with `flatline.attach`."
        )
    rows = np.flatnonzero(trace.rollouts["step"] == step)
    if not len(rows):
        steps = np.unique(trace.rollouts["step"]).astype(int)
        raise TraceError(
            f"No rollout was recorded for step {step}.\n"
            f"There are {len(steps)} steps with rollouts, from {steps[0]} to {steps[-1]}."
        )
    return rows


def _facts(trace: Trace) -> list[str]:
    run = trace.run
    imported = str(run.get("source", "")).startswith("import:")
    lines = [f"a log: {run['source'].removeprefix('import:')}"] if imported else _recording(trace)
    if run.get("fault"):
        lines.append(f"planted fault: {run['fault']}")
    if run.get("dropped_tokens"):
        lines.append(f"token detail of {run['dropped_tokens']} rollouts was dropped: slow disk")
    return [*lines, *_steps(trace.steps)]


def _recording(trace: Trace) -> list[str]:
    run = trace.run
    source = f"recorded by {run.get('source', 'unknown')}, flatline {run.get('flatline', '?')}"
    started = f"started {run.get('created', 'unknown')}"
    ended = f"ended {run['ended']}" if run.get("ended") else "not closed"
    how = trace.stopped or ("" if run.get("ended") else "It still runs.")
    return [source, f"{started}, {ended}", *([how] if how else [])]


def _steps(steps: Frame) -> list[str]:
    if not len(steps):
        return ["no step was completed"]
    numbers = steps["step"].astype(int)
    lines = [f"steps {numbers.min()} to {numbers.max()}"]
    for column, name in (("reward", "reward"), ("heldout_reward", "held-out reward")):
        seen = steps[column][~np.isnan(steps[column])] if column in steps else []
        if len(seen):
            lines.append(f"{name} {seen[0]:.3f} first, {seen[-1]:.3f} last")
    return lines


def _settings(settings: dict[str, Any]) -> RenderableType:
    known = [(name, found) for name, found in settings.items() if found is not None]
    table = Table.grid(padding=(0, 2))
    half = (len(known) + 1) // 2
    for left, right in zip(known[:half], [*known[half:], ("", "")], strict=False):
        table.add_row(*(Text(_setting(cell)) for cell in (*left, *right)))
    return table if known else Text("none")


def _setting(found: Any) -> str:
    text = visible(str(found))
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _tables(trace: Trace) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("table")
    table.add_column("rows", justify="right")
    table.add_column("not recorded", overflow="fold")
    for name, pieces in trace.tables.items():
        missing = [column for column in pieces.schema.names if not _present(trace, name, column)]
        shown = "everything" if len(missing) == len(pieces.schema.names) else ", ".join(missing)
        table.add_row(name, f"{len(pieces):,}", Text(shown or "-", style="dim"))
    return table


def _present(trace: Trace, table: str, column: str) -> bool:
    frames = {"steps": trace.steps, "rollouts": trace.rollouts, "weights": trace.weights}
    if table in frames:
        return column in frames[table]
    found = trace.tables[table]
    few = np.arange(min(len(found), 64))  # token columns are large, and recorded alike throughout
    part = found.gather(column, few)
    return bool(part.null_count < len(part))


def _next(trace: Trace, name: str) -> str:
    if not len(trace.rollouts):
        return f"flatline diagnose {name}"
    step = int(trace.rollouts["step"][-1])
    return f"flatline show {name} --step {step}\nflatline diagnose {name}"


def _group_title(rollouts: Frame, rows: np.ndarray) -> Text:
    parts = [f"group {number(value(rollouts, 'group', rows[0]), '.0f')}"]
    prompt, hops = (value(rollouts, name, rows[0]) for name in ("prompt_id", "hops"))
    parts += [f"prompt {shortened(prompt, limit=40)}"] if prompt else []
    parts += [f"{hops:.0f} hops"] if hops is not None else []
    if "reward" in rollouts:
        rewards = rollouts["reward"][rows]
        equal = len(rows) > 1 and bool((rewards == rewards[0]).all())
        same = ", all equal: no gradient" if equal else ""
        parts.append(f"mean reward {rewards.mean():.3f}{same}")
    return Text(visible(", ".join(parts)), style="bold")


def _group_table(rollouts: Frame, rows: np.ndarray) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for name, width in _COLUMNS.items():
        side: Literal["left", "right"] = "left" if name == "finish" else "right"
        table.add_column(name, justify=side, no_wrap=True, width=width)
    table.add_column("its end", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        table.add_row(*_rollout_cells(rollouts, int(row)))
    return table


def _rollout_cells(rollouts: Frame, row: int) -> list[Text]:
    text = value(rollouts, "completion", row) or ""
    cells = [
        str(_whole(rollouts, row)),
        number(value(rollouts, "reward", row)),
        number(value(rollouts, "advantage", row), "+.2f"),
        str(value(rollouts, "finish", row) or "-"),
        *(
            number(value(rollouts, name, row), ".0f")
            for name in ("tool_calls", "completion_tokens", "trained_tokens")
        ),
        _end_of(text),
    ]
    return [Text(visible(cell)) for cell in cells]


def _end_of(text: str) -> str:
    """As much as fits: completions begin alike, and end in the answer."""
    room = max(shutil.get_terminal_size().columns - _TAKEN, 16)
    text = " ".join(visible(_LAST_TOKEN.sub("", text[-4 * room :])).split())
    return text if len(text) <= room else f"…{text[1 - room :]}"


def _whole(rollouts: Frame, row: int) -> int:
    return int(rollouts["rollout"][row])
