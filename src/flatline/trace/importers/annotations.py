"""prime-rl's trace annotations: what was found out about a trace after it was written.

    {"version": 1, "trace_id": "...", "info": {"train": {"trained_at_step": 3}, "advantage": 0.5},
     "branches": [{"index": 0, "trainer_logprobs": [null, ..., -0.1], "advantages": [...]}]}

They lie in `annotations/` beside the stream of traces, a file or a folder of files per producer. A
list is over all tokens of one sequence, null where nothing is known. The newest wins.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

from flatline.trace.importers.episodes import paths_of
from flatline.trace.importers.log import Log
from flatline.trace.importers.numbers import number, whole
from flatline.trace.importers.text import inside, read_jsonl

Updates = dict[str, list[dict[str, Any]]]
"""Trace id -> its updates, in the order they were written."""
_LISTS = ("advantages", "trainer_logprobs")


def annotations_of(path: Path) -> Updates:
    """The updates of the traces in a file; none where nothing was annotated."""
    folder = (path.parent.parent if path.parent.name == "stream" else path.parent) / "annotations"
    if not folder.is_dir():
        return {}
    found = inside(folder.parent, sorted({*folder.glob("*.jsonl*"), *folder.glob("*/*.jsonl*")}))
    updates: Updates = defaultdict(list)
    for file in found:
        if ".index." in file.name:
            continue
        for entry in read_jsonl(file, source="jsonl").entries:
            if isinstance(name := entry.values.get("trace_id"), str):
                updates[name].append(entry.values)
    return dict(updates)


def annotate(log: Log, updates: Updates) -> None:
    """Write the updates into the episodes and traces of a log."""
    for entry in log.entries:
        traces = entry.values.get("traces")
        for trace in traces if isinstance(traces, list) else [entry.values]:
            if isinstance(trace, dict) and isinstance(trace.get("id"), str):
                for update in updates.get(trace["id"], ()):
                    _update(trace, update)


def _update(trace: dict[str, Any], update: dict[str, Any]) -> None:
    if isinstance(update.get("info"), dict):
        trace["info"] = _merged(trace.get("info"), update["info"])
    branches, paths = update.get("branches"), paths_of(trace)
    for branch in branches if isinstance(branches, list) else []:
        index = whole(branch.get("index")) if isinstance(branch, dict) else None
        if index is not None and index < len(paths):
            for name in _LISTS:
                _lay_out(trace["nodes"], paths[index], name, branch.get(name))


def _lay_out(nodes: list[dict[str, Any]], path: list[int], name: str, values: Any) -> None:
    """Give every node of a sequence its part of a list, over its sampled tokens."""
    start = 0
    for at in path:
        ids, mask = nodes[at].get("token_ids"), nodes[at].get("mask")
        if not isinstance(values, list) or not isinstance(ids, list) or not isinstance(mask, list):
            return
        part = values[start : start + len(ids)]
        start += len(ids)
        if len(part) == len(mask) and any(mask):
            sampled = [number(v) for v, on in zip(part, mask, strict=True) if on]
            if any(value is not None for value in sampled):
                nodes[at][name] = sampled


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {name: _merged(old.get(name), value) for name, value in new.items()}
