"""Where trainers leave their rollouts in a folder, and all files of one run read as one log.

STEP.jsonl                                            verl, `trainer.rollout_data_dir`
train_data_stepSTEP.jsonl                             NeMo-RL, `logger.log_dir/exp_NNN`
monitors/file/traces/stream/00000.jsonl[.zst]         prime-rl, with `annotations/` beside it
rollouts/step_STEP/train_rollouts.jsonl               older prime-rl; train/all/traces.jsonl too
token_exports/step_STEP/rank_0.jsonl                  prime-rl, `trainer.enable_token_export`
dumped_evals/global_step_STEP_evals/SOURCE.jsonl      SkyRL, `trainer.dump_eval_results`
traces.jsonl                                          verifiers 0.4
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flatline.trace.importers.annotations import annotate, annotations_of
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.rollouts import KINDS, as_rollouts
from flatline.trace.importers.text import inside, read_jsonl

TOKEN_STEPS = 8
"""Steps from the first, and from the last, that keep their token detail."""
_DEEPEST = 6
"""Folders below the one that was given, in which files are looked for."""
_LAYOUTS = tuple(
    re.compile(f"(?P<run>.*)/{layout}")
    for layout in (
        r"traces/stream/\d{5}\.jsonl(\.zst)?",
        r"traces/stream\.jsonl",
        r"(rollouts|traces)/step_(?P<step>\d+)/train(/all)?/traces\.jsonl",
        r"rollouts/step_(?P<step>\d+)/train_rollouts\.jsonl",
        r"token_exports/step_(?P<step>\d+)/rank_\d+\.jsonl",
        r"train_data_step(?P<step>\d+)\.jsonl",
        r"dumped_evals/global_step_(?P<step>\d+)_evals/(?!aggregated_results)[^/]+\.jsonl",
    )
)
_HERE = tuple(
    re.compile(f"(?P<run>.*)/{layout}") for layout in (r"(?P<step>\d+)\.jsonl", r"traces\.jsonl")
)
"""Names that mean something only in the folder itself."""


class Dump(NamedTuple):
    """One file of rollouts."""

    path: Path
    run: str
    """The folder of the run it belongs to."""
    step: int | None
    """For rows that name none."""


def find_dumps(folder: Path) -> list[Dump]:
    """The files of rollouts in a folder, in the order of their steps; all of one layout."""
    below = list(_below(folder))
    here = [path for path in below if path.parent == folder]
    for layouts, paths in ((_LAYOUTS, below), (_HERE, here)):
        for layout in layouts:
            found = [dump for path in paths if (dump := _dump(path, layout)) is not None]
            if found:
                inside(folder, (dump.path for dump in found))
                return sorted(found, key=lambda dump: (dump.run, dump.step or 0, dump.path))
    return []


def read_dumps(folder: Path, dumps: list[Dump]) -> Log:
    """The rollouts of all files. Where many steps have token detail, those in between lose it."""
    log = Log(source="jsonl", path=folder)
    for dump in dumps:
        part = as_rollouts(read_rows(dump.path), step=dump.step)
        if log.source not in KINDS:
            log.source = part.source
        log.bad.extend(f"{dump.path.name} {reason}" for reason in part.bad)
        if part.source not in KINDS or part.source != log.source:
            log.bad.append(f"{dump.path.name}: holds no rollouts as the others do")
            continue
        log.unrecognised |= part.unrecognised
        log.entries.extend(Entry(f"{dump.path.name} {e.place}", e.values) for e in part.entries)
        _thin_out(log)
    return log


def read_rows(path: Path) -> Log:
    """The rows of one file as they are, with what was found out about them later."""
    log = read_jsonl(path, source="jsonl")
    if updates := annotations_of(path):
        annotate(log, updates)
    return log


def _below(folder: Path) -> Iterator[Path]:
    """Files of rows, a few folders deep; hidden folders are environments and caches, not logs."""
    for place, folders, files in os.walk(folder):
        deep = len(Path(place).relative_to(folder).parts) + 1
        folders[:] = [name for name in folders if deep < _DEEPEST and not name.startswith(".")]
        yield from (Path(place) / name for name in files if ".jsonl" in name)


def _dump(path: Path, layout: re.Pattern[str]) -> Dump | None:
    found = layout.fullmatch(path.absolute().as_posix())
    if found is None:
        return None
    step = found.groupdict().get("step")
    return Dump(path, found["run"], None if step is None else int(step))


def _thin_out(log: Log) -> None:
    steps = sorted({e.values["step"] or 0 for e in log.entries if e.values.get("tokens")})
    if len(steps) <= 2 * TOKEN_STEPS:
        return
    dropped = set(steps[TOKEN_STEPS:-TOKEN_STEPS])
    for entry in log.entries:
        if (entry.values["step"] or 0) in dropped:
            entry.values["tokens"] = None
    note = f"Token detail is kept of the first and the last {TOKEN_STEPS} steps."
    if note not in log.notes:
        log.notes.append(note)
