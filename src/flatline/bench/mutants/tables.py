"""What tried mutants show, as plain data and as Markdown."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flatline.bench.mutants.difference import Effect
from flatline.bench.tables import table_head, table_row

Row = dict[str, Any]
By = Callable[[Row], str]


def score(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of effects, and how many of each the checkup alarms on."""
    changes = [row for row in rows if row["effect"] == Effect.CHANGES]
    return {
        "mutants": len(rows),
        "effects": {effect.value: _counted(rows, effect) for effect in Effect},
        "by operator": _alarms_by(changes, lambda row: str(row["mutation"]["operator"])),
        "by function": _alarms_by(changes, lambda row: str(row["mutation"]["function"])),
        "first alarm": dict(Counter(_first(row) for row in changes).most_common()),
        "silent": [_told(row) for row in changes if not _alarms(row)],
        "false alarms": [
            _told(row) for row in rows if row["effect"] == Effect.SAME and _alarms(row)
        ],
    }


def markdown(figures: dict[str, Any]) -> str:
    """The same as tables."""
    return "\n".join(
        (
            f"{figures['mutants']} mutants.\n",
            *_table(("what it does", "mutants", "looked at", "alarm"), _effects(figures)),
            "",
            *_table(("operator", "change the training", "alarm"), _by(figures["by operator"])),
            "",
            *_table(("function", "change the training", "alarm"), _by(figures["by function"])),
        )
    )


def _counted(rows: Sequence[Row], effect: Effect) -> dict[str, int]:
    some = [row for row in rows if row["effect"] == effect]
    looked = [row for row in some if "alarms" in row.get("checkup", {})]
    return {
        "mutants": len(some),
        "looked at": len(looked),
        "alarm": sum(bool(_alarms(row)) for row in looked),
    }


def _alarms_by(rows: Sequence[Row], by: By) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = found.setdefault(by(row), {"mutants": 0, "alarm": 0})
        counts["mutants"] += 1
        counts["alarm"] += bool(_alarms(row))
    return dict(sorted(found.items(), key=lambda item: -item[1]["mutants"]))


def _alarms(row: Row) -> list[dict[str, str]]:
    return list(row.get("checkup", {}).get("alarms", ()))


def _first(row: Row) -> str:
    alarms = _alarms(row)
    return alarms[0]["hypothesis"] if alarms else "none"


def _told(row: Row) -> str:
    change = row["mutation"]
    return (
        f"{change['module']}:{change['line']} {change['function']}, {change['operator']}: "
        f"`{change['before']}` -> `{change['after']}` ({_first(row)})"
    )


def _effects(figures: dict[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    for effect, counts in figures["effects"].items():
        yield effect, counts["mutants"], counts["looked at"], counts["alarm"]


def _by(counts: dict[str, dict[str, int]]) -> Iterator[tuple[str, int, int]]:
    for name, of in counts.items():
        yield name, of["mutants"], of["alarm"]


def _table(names: Sequence[str], rows: Iterator[tuple[object, ...]]) -> Iterator[str]:
    yield from table_head(names)
    yield from (table_row(cells) for cells in rows)
