"""Makes all answers, compares them with the kept ones, or keeps them."""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.golden.cases import every_case
from tests.golden.entry import Entry
from tests.golden.kept import keep_all, kept


def made(asked: tuple[str, str]) -> tuple[str, str, Entry, float]:
    group, name = asked
    begun = time.perf_counter()
    entry = every_case()[group][name]()
    return group, name, entry, time.perf_counter() - begun


def main() -> int:
    ask = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    ask.add_argument("--write", action="store_true", help="keep the answers")
    ask.add_argument("--only", default="", metavar="WORD", help="cases with it in GROUP/NAME")
    ask.add_argument("--jobs", type=int, default=2)
    ask.add_argument("--slowest", type=int, default=0, metavar="N")
    given = ask.parse_args()
    chosen = [
        (group, name)
        for group, cases in every_case().items()
        for name in cases
        if given.only in f"{group}/{name}"
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        found = list(pool.map(made, chosen, chunksize=4))
    for group, name, _, seconds in sorted(found, key=lambda one: -one[3])[: given.slowest]:
        print(f"{seconds:6.1f} s {group}/{name}")
    differing = [one for one in found if differs(*one[:3])]
    if given.write:
        keep_all({(group, name): entry for group, name, entry, _ in differing})
    print(f"{len(found)} answers, {len(differing)} differ from the kept ones")
    return int(bool(differing) and not given.write)


def differs(group: str, name: str, entry: Entry) -> bool:
    """Whether an answer is another than the kept one; if so, how is printed."""
    before = kept(group, name)
    if before == entry:
        return False
    print(f"{group}/{name}")
    if before is None:
        print("  is new")
        return True
    for key in sorted({*before.strict, *entry.strict}):
        was, now = before.strict.get(key), entry.strict.get(key)
        if was != now:
            print(f"  {key}\n    was {json.dumps(was)}\n    now {json.dumps(now)}")
    if before.strict == entry.strict:
        print("  wording only")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
