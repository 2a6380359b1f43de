"""The figures of a benchmark as Markdown, as `docs/benchmark.md` holds them."""

from collections.abc import Iterator, Mapping
from typing import Any

from bench.peers import ASK
from bench.shares import ANSWER
from flatline.bench.tables import table_head, table_row

Figures = Mapping[str, Any]


def markdown(figures: Figures) -> str:
    """All tables, one after the other."""
    parts = (_cells, _accuracy, _healthy, _false_alarms, _faults, _missed, _harmless)
    more = (_detection, _silence, _confusion, _pairs, _ablation, _peers, _failures)
    return "\n".join(line for part in (*parts, *more) for line in part(figures)).strip()


def _cells(figures: Figures) -> Iterator[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(figures["cells"].items()))
    yield f"{sum(figures['cells'].values())} cells: {counts}."
    yield from (f"- {line}" for line in figures["versions"])
    if figures["repeated"]:
        listed = ", ".join(f"{name} (there {twin})" for name, twin in figures["repeated"].items())
        yield f"- repeated, so not counted: calibration has them too, but for the seed: {listed}"
    for look, count in figures["untaken"].items():
        yield f"- without {look}: {count} cells, which count only where they were looked at"


def _accuracy(figures: Figures) -> Iterator[str]:
    yield from _title("Is the planted fault named?")
    rows = figures["accuracy"]
    looks = list(dict.fromkeys(look for row in rows for look in row["by_look"]))
    yield from table_head(["runs", "named", *looks])
    for row in rows:
        place = "first" if row["top"] == 1 else f"in the first {row['top']}"
        place += " (look-alikes accepted)" if row["alike"] else ""
        cells = [_share(row["by_look"][look]) if look in row["by_look"] else "" for look in looks]
        yield table_row([row["set"], place, *cells])
    yield "\n95 % interval over faults: all seeds and strengths of a fault are one unit."
    yield "`one answer` is checkup and last diagnosis ranked as one list; `either` has the fault"
    yield "first in one of the two, which is two guesses."


def _healthy(figures: Figures) -> Iterator[str]:
    yield from _title("Healthy runs with an alarm")
    looks = list(dict.fromkeys(look for row in figures["healthy"] for look in row["by_look"]))
    yield from table_head(["split", "runs", *looks])
    for row in figures["healthy"]:
        cells = [_alarmed(row["by_look"][look]) if look in row["by_look"] else "" for look in looks]
        yield table_row([row["split"], row["runs"], *cells])
    yield "\nExact (Clopper-Pearson) 95 % interval. Only `held-out` counts: thresholds were set on"
    yield "the others."


def _false_alarms(figures: Figures) -> Iterator[str]:
    if not figures["false_alarms"]:
        yield "\nNo healthy run set off an alarm."
        return
    yield ""
    yield from table_head(["healthy run", "learnt", "look", "hypothesis", "what it says"])
    for one in figures["false_alarms"]:
        learnt = "yes" if one["learnt"] else "no"
        yield table_row([one["cell"], learnt, one["look"], one["hypothesis"], one["text"]])


def _faults(figures: Figures) -> Iterator[str]:
    yield from _title("Every fault")
    looks = list(dict.fromkeys(look for row in figures["faults"] for look in row["by_look"]))
    cost = ["reward lost", "n", "seed by seed", "p", "corrected", "verdict"]
    yield from table_head(["fault", "hypothesis", *cost, *looks])
    for row in figures["faults"]:
        ranks = [" ".join(_rank(one) for one in row["by_look"].get(look, ())) for look in looks]
        known = [f"{_where(row)}{row['fault']}", " ".join(row["hypothesis"]), *_cost(row)]
        yield table_row([*known, *ranks])
    rate = f"{figures['false_discoveries']:.0%}"
    yield "\nReward lost: held-out, healthy minus faulty, with its 95 % interval; `n` says of what."
    yield "`p` is of the same test, `corrected` for all the faults of this table, and decides"
    yield f"(Benjamini-Hochberg, false discovery rate {rate}). Ranks seed by seed: `-` is no alarm"
    yield "of it, with what came first instead in brackets, `.` was not asked."


def _cost(row: Mapping[str, Any]) -> list[str]:
    """What a fault cost: on average, over how many units, and with each seed."""
    lost, by_seed = row["lost"], row["lost_by_seed"]
    each = " ".join(
        f"{by_seed[seed]:+.3f}" if seed in by_seed else "." for seed in map(str, row["seeds"])
    )
    tests = [_chance(row[key]) for key in ("p", "corrected")]
    return [_estimate(lost), f"{lost['n']} {row['unit']}", each, *tests, row["verdict"]]


def _chance(p: float | None) -> str:
    if p is None:
        return "."
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _missed(figures: Figures) -> Iterator[str]:
    hurting = sum(row["verdict"] == "hurts" for row in figures["faults"])
    planted, before = len(figures["faults"]), hurting + len(figures["uncorrected"])
    if planted:
        yield f"\n{hurting} of {planted} planted faults hurt, {before} before the correction."
    missed = [f"{_where(row)}{row['fault']}" for row in figures["missed"]]
    if hurting and not missed:
        yield "\nEach of those that hurt comes first in the one answer about every run."
    if missed:
        yield f"\nHurt, and not first in the one answer about every run: {', '.join(missed)}."


def _rank(one: Mapping[str, Any]) -> str:
    if not one["taken"]:
        return "."
    rank, first = one["rank"], one["first"]
    return "1" if rank == 1 else f"{rank or '-'}{f' ({first})' if first else ''}"


def _harmless(figures: Figures) -> Iterator[str]:
    for key, words in (
        ("uncorrected", "hurting only before the correction, so not counted"),
        ("harmless", "not shown to hurt, so not counted"),
        ("open", "not compared"),
    ):
        if figures[key]:
            listed = ", ".join(f"{_where(one)}{one['fault']}" for one in figures[key])
            yield f"\nPlanted and {words} ({len(figures[key])}): {listed}."


def _where(one: Mapping[str, Any]) -> str:
    return "" if one["task"] == "musique" else f"{one['task']}: "


def _detection(figures: Figures) -> Iterator[str]:
    yield from _title("After how many steps and seconds")
    found = figures["detection"]
    total = sum(found["steps"].values())
    order = sorted(found["steps"], key=lambda at: float("inf") if at == "never" else int(at))
    yield from table_head(["named first after", "runs"])
    for at in order:
        words = {"0": "0 steps (checkup)", "never": "never"}.get(at, f"{at} steps")
        yield table_row([words, f"{found['steps'][at]} of {total}"])
    if found["seconds"]:
        middle, most = found["seconds"]["median"], found["seconds"]["most"]
        yield f"\nMedian {middle:.0f} s, most {most:.0f} s, with what had been trained by then."


def _silence(figures: Figures) -> Iterator[str]:
    yield from _title("When flatline says nothing")
    yield from table_head(
        ["look", "faults that hurt, no alarm at all", "hypotheses that cannot tell"]
    )
    for look, row in figures["silence"].items():
        yield table_row([look, _share(row), f"{row['unknown']:.0%}"])


def _confusion(figures: Figures) -> Iterator[str]:
    yield from _title("What is taken for what")
    looks = (ANSWER, "checkup", "diagnose")
    yield from table_head(["planted", *(f"{look} names first" for look in looks)])
    for row in figures["confusion"]:
        cells = [_counts(row[look], row["planted"]) for look in looks]
        yield table_row([row["planted"], *cells])
    yield "\nOne thing seen twice, accepted where a row says so:"
    for name, (code, why) in figures["alike"].items():
        yield f"- {name} as {code}: {why}"


def _counts(counts: Mapping[str, int], planted: str) -> str:
    order = sorted(counts.items(), key=lambda one: (one[0] != planted, -one[1], one[0]))
    return ", ".join(f"**{c}** x{n}" if c == planted else f"{c} x{n}" for c, n in order)


def _pairs(figures: Figures) -> Iterator[str]:
    rows = figures["pairs"]["rows"]
    if not rows:
        return
    yield from _title("Two faults at once")
    yield from table_head(
        ["cell", "planted", "checkup", "diagnose", "both in one answer's first 4"]
    )
    for row in rows:
        listed = [" ".join(row[key]) or "nothing" for key in ("wanted", "checkup", "diagnose")]
        yield table_row([row["cell"], *listed, "yes" if row["both"] else "no"])
    shares = figures["pairs"]["by_look"].items()
    yield (
        "\nBoth in the first 4: " + "; ".join(f"{name} {_share(one)}" for name, one in shares) + "."
    )


def _ablation(figures: Figures) -> Iterator[str]:
    yield from _title("What each kind of evidence adds")
    yield from table_head(
        ["evidence", "first", "in the first 3", "held-out healthy runs with an alarm"]
    )
    for row in figures["ablation"]:
        tops = [_share(one) for one in row["top"].values()]
        yield table_row([row["evidence"], *tops, _alarmed(row["false_alarms"])])


def _peers(figures: Figures) -> Iterator[str]:
    found = figures["peers"]
    yield from _title("Other tools on the same runs")
    for name in ASK:
        if not found["asked"][name]:
            yield f"{name} was not asked: give `--peer {name}=PYTHON` and cells with traces.\n"
    if not found["tools"]:
        return
    yield f"{', '.join(found['versions'])}; on the cells that all were asked about.\n"
    yield from table_head(["", *found["tools"]])
    for key, words in (
        ("false_alarms", "held-out healthy runs with an alarm"),
        ("noticed", "faults that hurt: an alarm"),
        ("cause", "faults that hurt: points at the cause"),
    ):
        yield table_row([words, *(_share(one[key]) for one in found["tools"].values())])
    yield table_row(["gave no answer", *(str(one["failed"]) for one in found["tools"].values())])


def _failures(figures: Figures) -> Iterator[str]:
    if figures["failures"]:
        yield from _title("Trainings that broke down")
        yield from (f"- {name}: {told}" for name, told in figures["failures"].items())
    if figures["defects"]:
        yield from _title("Hypotheses that could not be asked: defects of flatline")
        for code, cells in figures["defects"].items():
            yield f"- {code} on {len(cells)} cells, such as {cells[0]}"


def _title(text: str) -> Iterator[str]:
    yield f"\n## {text}\n"


def _share(one: Mapping[str, Any]) -> str:
    if not one["of"]:
        return "none"
    counted = f"{one['count']} of {one['of']}"
    if one["low"] is None:
        return counted
    return f"{counted} ({one['count'] / one['of']:.0%}; {one['low']:.0%} to {one['high']:.0%})"


def _alarmed(one: Mapping[str, Any]) -> str:
    """The share, and what is not in it: runs about which flatline could not be asked."""
    apart = f", and {one['unasked']} that could not be asked" if one["unasked"] else ""
    return _share(one) + apart


def _estimate(one: Mapping[str, Any]) -> str:
    if one["value"] is None:
        return "unknown"
    if one["low"] is None or one["high"] is None:
        return f"{one['value']:+.3f}"
    return f"{one['value']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"
