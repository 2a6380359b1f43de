"""`python -m museum [NAME ...]`: fetch, run, print the table, write results."""

import argparse
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.peers_asked import pythons_of
from flatline.files import write_atomically
from museum.exhibit import defect, exhibit, names
from museum.page import PEERS_OF, RESULTS, read, said
from museum.peers import ask_peers
from museum.run import named, run_exhibit, silent


def main() -> int:
    ask = argparse.ArgumentParser(prog="python -m museum", description="Real releases, run.")
    ask.add_argument("names", nargs="*", metavar="NAME", help="exhibits; all without one")
    ask.add_argument("--out", type=Path, default=Path("runs/museum"), help="wheels and runs")
    ask.add_argument("--again", action="store_true", help="run once more what is finished")
    ask.add_argument("--later", action="store_true", help="also those for the very end")
    ask.add_argument("--keep", action="store_true", help="write museum/results.json")
    ask.add_argument("--jobs", type=int, default=1, metavar="N", help="exhibits at a time")
    ask.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    given = ask.parse_args()
    unknown = sorted(set(given.names) - set(names()))
    if unknown:
        ask.error(f"no exhibit is called {unknown[0]!r}; there are: {', '.join(names())}")
    chosen = given.names or [one for one in names() if given.later or not exhibit(one).later]
    pythons = pythons_of(given.peer)

    def run(name: str) -> dict[str, Any]:
        sides = run_exhibit(name, given.out, again=given.again)
        ask_peers(name, sides, given.out, pythons)
        print(_line(name, sides), flush=True)
        return sides

    with ThreadPoolExecutor(given.jobs) as pool:
        found = dict(zip(chosen, pool.map(run, chosen), strict=True))
    if given.keep:
        keep(found)
    return int(not all(map(fine, found, found.values())))


def fine(name: str, sides: Mapping[str, Any]) -> bool:
    """Named and silent; or not to be had, which was said."""
    missing = any("not_had" in side for side in sides.values())
    return missing or (named(exhibit(name), sides["bad"]) and silent(sides["good"]))


def keep(found: dict[str, Any]) -> None:
    """Results of all exhibits that were ever run."""
    kept = read()
    new = {name: beside_published(kept.get(name), sides, name) for name, sides in found.items()}
    results = dict(sorted((kept | new).items()))
    write_atomically(RESULTS, [json.dumps(results, indent=1, sort_keys=True)])


def beside_published(
    kept: dict[str, Any] | None, sides: dict[str, Any], name: str
) -> dict[str, Any]:
    """What an exhibit that is run once gave at its first run stays; what it gives later, when
    flatline may have learnt from it, stands beside it. Peers that are not asked again keep their
    word."""
    if kept is None:
        return sides
    if exhibit(name).later:
        return kept | {"since": sides}
    return {side: _heard(kept[side], found) | found for side, found in sides.items()}


def _heard(kept: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    if "peers" in found:
        return {}
    return {key: kept[key] for key in ("peers", PEERS_OF) if key in kept}


def _line(name: str, sides: Mapping[str, Any]) -> str:
    one = exhibit(name)
    bad, good = sides["bad"], sides["good"]
    words = "named" if named(one, bad) else "NOT NAMED", "silent" if silent(good) else "NOT SILENT"
    return (
        f"{name}: {defect(name).library} {bad['release']} {words[0]} ({said(bad)}); "
        f"{good['release']} {words[1]} ({said(good)})"
    )


if __name__ == "__main__":
    raise SystemExit(main())
