"""What tried mutants show, as plain data and as Markdown."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flatline.bench.harm import Verdict
from flatline.bench.mutants.difference import Effect
from flatline.bench.mutants.results import Tried
from flatline.bench.mutants.study import Row
from flatline.bench.shares import exact_share
from flatline.bench.tables import table_head, table_row

EVERYTHING = "all"

Holds = Callable[[Tried], bool]
_BY: Mapping[str, Callable[[Tried], str]] = {
    "script": lambda one: " ".join((one.study["script"], *one.study["arguments"])),
    "module": lambda one: str(one.change["module"]),
    "operator": lambda one: str(one.change["operator"]),
    "stage": lambda one: str(one.row.get("stage", "unknown")),
    "function": lambda one: str(one.change["function"]),
}


def score(tried: Sequence[Tried], healthy: Sequence[Row]) -> dict[str, Any]:
    """Every figure, by split where there are two."""
    splits = sorted({str(one.study["split"]) for one in tried})
    return {
        "runs": _runs(tried),
        "splits": {
            split: _figures([one for one in tried if one.study["split"] == split])
            for split in splits
        },
        "unchanged scripts": _healthy(healthy),
    }


def markdown(figures: Mapping[str, Any]) -> str:
    """The same as tables."""
    lines = [f"- {told}" for told in figures["runs"]]
    for split, found in figures["splits"].items():
        lines += ["", f"## {split} mutants", "", *_split_tables(found)]
    if figures["unchanged scripts"]["diagnosed"]:
        lines += ["", *_peers_table("scripts without a change", figures["unchanged scripts"])]
    return "\n".join(lines)


def _runs(tried: Sequence[Tried]) -> list[str]:
    """What ran: releases, and which flatline."""
    counts = Counter(
        (
            ", ".join(f"{name} {number}" for name, number in sorted(one.study["versions"].items())),
            f"commit {one.study['commit']}, source {one.row['source']}",
        )
        for one in tried
    )
    return [f"{count} mutants with {'; '.join(told)}" for told, count in counts.most_common()]


def _figures(tried: Sequence[Tried]) -> dict[str, Any]:
    changes = [one for one in tried if one.effect is Effect.CHANGES]
    hurting = [one for one in tried if one.hurts]
    return {
        "mutants": len(tried),
        "configurations": len({_BY["script"](one) for one in changes}),
        "effects": {effect.value: _counted(tried, effect) for effect in Effect},
        "seconds": _seconds(tried),
        "shares": {
            name: _shares([one for one in tried if name in (EVERYTHING, _ground(one))])
            for name in (EVERYTHING, *sorted({_ground(one) for one in changes}))
        },
        "by": {name: _by(changes, key) for name, key in _BY.items()},
        "harm": _harm(tried),
        "peers": _peers([(one.peers or {}, one.diagnosed) for one in hurting]),
        "first alarm": dict(Counter(_first(one) for one in changes).most_common()),
        "silent": [_told(one) for one in changes if not _alarm(one) and not one.is_a_wish],
        "wishes": [_told(one) for one in changes if one.is_a_wish],
        "elsewhere": [_told(one) for one in tried if one.effect is Effect.ELSEWHERE],
        "false alarms": [_told(one) for one in tried if one.effect is Effect.SAME and one.alarms],
    }


def _ground(one: Tried) -> str:
    """What was changed: nothing of the arguments says what a reward function should pay."""
    if one.row.get("kind") == "loop":
        return "a loop without a trainer"
    own = str(one.change["module"]).endswith(".py")
    return "the user's script" if own else "a library"


def _shares(tried: Sequence[Tried]) -> dict[str, Any]:
    changes = [one for one in tried if one.effect is Effect.CHANGES]
    placed = [one for one in changes if one.alarms and one.row.get("stage")]
    alarmed = [one for one in changes if one.alarms]
    hurting = [one for one in tried if one.hurts]
    same = [one for one in tried if one.effect is Effect.SAME and one.looked_at]
    return {
        "change the training: alarm, or refused by name": _share(changes, _alarm),
        "the same, without what contradicts no statement of intent": _share(
            [one for one in changes if not one.is_a_wish], _alarm
        ),
        "with an alarm: right stage first": _share(placed, lambda one: one.right_stage),
        "hurt: alarm": _share(hurting, _alarm),
        "hurt: alarm, or one in the diagnosis": _share(
            hurting, lambda one: _alarm(one) or bool(one.diagnosed)
        ),
        "hurt, with an alarm: right stage first": _share(
            [one for one in placed if one.hurts], lambda one: one.right_stage
        ),
        "with an alarm: the changed line among the first 5": _share(
            alarmed, lambda one: one.line_shown
        ),
        "with an alarm: its function first": _share(alarmed, lambda one: one.function_first),
        "change nothing: alarm": _share(same, _alarm),
    }


def _counted(tried: Sequence[Tried], effect: Effect) -> dict[str, int]:
    some = [one for one in tried if one.effect is effect]
    looked = [one for one in some if one.looked_at]
    return {
        "mutants": len(some),
        "looked at": len(looked),
        "alarm": sum(map(_alarm, looked)),
    }


def _seconds(tried: Sequence[Tried]) -> dict[str, float]:
    """Of one core: a mutant on average, and one with a checkup."""
    whole = [one.row.get("seconds", 0.0) + _checkup_seconds(one) for one in tried]
    looked = [took for one, took in zip(tried, whole, strict=True) if one.looked_at]
    return {
        "a mutant": round(sum(whole) / len(whole), 1),
        "a mutant with checkup": round(sum(looked) / max(1, len(looked)), 1),
    }


def _checkup_seconds(one: Tried) -> float:
    return float(one.row.get("checkup", {}).get("seconds", 0.0))


def _share(tried: Sequence[Tried], holds: Holds) -> dict[str, Any]:
    return exact_share(sum(map(holds, tried)), len(tried))


def _by(changes: Sequence[Tried], key: Callable[[Tried], str]) -> dict[str, dict[str, int]]:
    names = Counter(map(key, changes))
    return {
        name: {
            "mutants": count,
            "alarm": sum(_alarm(one) for one in changes if key(one) == name),
            "right stage": sum(one.right_stage for one in changes if key(one) == name),
        }
        for name, count in names.most_common()
    }


def _harm(tried: Sequence[Tried]) -> dict[str, Any]:
    """What was trained whole, by effect and verdict."""
    trained = [one for one in tried if one.harm is not None]
    return {
        effect.value: {
            verdict.value: sum(
                one.harm is not None and one.harm.verdict is verdict
                for one in trained
                if one.effect is effect
            )
            for verdict in Verdict
        }
        for effect in (Effect.CHANGES, Effect.SCALE)
    }


def _healthy(runs: Sequence[Row]) -> dict[str, Any]:
    return _peers([(run["peers"], run["diagnosis"].get("alarms", [])) for run in runs])


def _peers(runs: Sequence[tuple[Mapping[str, Row], Sequence[Row]]]) -> dict[str, Any]:
    """How many of these runs each tool alarms on, on what all were asked about."""
    names = sorted({name for said, _ in runs for name in said})
    return {
        "diagnosed": len(runs),
        "flatline, diagnosis": sum(bool(alarms) for _, alarms in runs),
        "peers": {
            name: exact_share(sum(bool(one["alarms"]) for one in told), len(told))
            for name in names
            for told in [[said[name] for said, _ in runs if _answered(said.get(name))]]
        },
    }


def _answered(said: Row | None) -> bool:
    """Silence of a tool that failed is none."""
    return said is not None and not said.get("failure")


def _alarm(one: Tried) -> bool:
    return bool(one.alarms) or one.refused


def _first(one: Tried) -> str:
    return str(one.alarms[0]["hypothesis"]) if one.alarms else "none"


def _told(one: Tried) -> str:
    change = one.change
    return (
        f"{_BY['script'](one)}: {change['module']}:{change['line']} {change['function']}, "
        f"{change['operator']}: `{change['before']}` -> `{change['after']}` "
        f"({one.row.get('stage', 'no stage')}; {_first(one)})"
    )


def _split_tables(found: Mapping[str, Any]) -> Iterator[str]:
    seconds = found["seconds"]
    yield (
        f"{found['mutants']} mutants in {found['configurations']} configurations; "
        f"{seconds['a mutant']} s of one core each, {seconds['a mutant with checkup']} s with "
        "a checkup.\n"
    )
    yield from table_head(("what it does", "mutants", "looked at", "alarm"))
    for effect, counts in found["effects"].items():
        yield table_row((effect, *counts.values()))
    yield ""
    grounds = list(found["shares"])
    yield from table_head(("", *grounds))
    for name in found["shares"][EVERYTHING]:
        cells = [_percent(found["shares"][ground][name]) for ground in grounds]
        yield table_row((name, *cells))
    for name, counts in found["by"].items():
        yield ""
        yield from table_head((name, "change the training", "alarm", "right stage first"))
        yield from (table_row((key, *of.values())) for key, of in counts.items())
    yield ""
    verdicts = [verdict.value for verdict in Verdict]
    yield from table_head(("trained whole", *verdicts))
    for effect, counts in found["harm"].items():
        yield table_row((effect, *counts.values()))
    if found["peers"]["diagnosed"]:
        yield ""
        yield from _peers_table("mutants that hurt", found["peers"])
    yield from _listed("Change the training, and the checkup says nothing", found["silent"])
    yield from _listed(
        "Change what the script itself asks for, and contradict nothing else that it says",
        found["wishes"],
    )
    yield from _listed("Change nothing, and the checkup alarms", found["false alarms"])
    yield from _listed(
        "Change nothing here and the training in another setting, and the checkup alarms",
        found["elsewhere"],
    )


def _listed(what: str, mutants: Sequence[str]) -> Iterator[str]:
    yield f"\n{what}: {len(mutants) or 'none'}.\n"
    yield from (f"- {' '.join(one.split())}" for one in mutants)


def _peers_table(what: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield from table_head((what, "alarm"))
    own = exact_share(found["flatline, diagnosis"], found["diagnosed"])
    yield table_row(("flatline, diagnosis", _percent(own)))
    yield from (table_row((name, _percent(one))) for name, one in found["peers"].items())


def _percent(one: Mapping[str, Any]) -> str:
    if not one["of"]:
        return "none"
    return (
        f"{one['count']} of {one['of']} ({one['count'] / one['of']:.0%}; "
        f"{one['low']:.0%} to {one['high']:.0%})"
    )
