"""`python -m museum [NAME ...]`: fetch, run, print the table."""

import argparse
from pathlib import Path

from museum.exhibit import exhibit, names
from museum.run import named, run_exhibit, silent


def main() -> int:
    ask = argparse.ArgumentParser(prog="museum", description=__doc__)
    ask.add_argument("names", nargs="*", help="exhibits; all but those for later")
    ask.add_argument("--out", type=Path, default=Path("runs/museum"))
    ask.add_argument("--again", action="store_true", help="run what is finished once more")
    given = ask.parse_args()
    for name in given.names or [one for one in names() if not exhibit(one).later]:
        one, sides = exhibit(name), run_exhibit(name, given.out, again=given.again)
        print(f"{name:28s} {_word(named(one, sides['bad']), sides['bad'])} | {_word(silent(sides['good']), sides['good'])}", flush=True)
    return 0


def _word(fine: bool, side: dict) -> str:
    said = side.get("not_had") or side.get("failure") or " ".join(a["code"] for a in side["alarms"]) or "silent"
    return f"{'ok ' if fine else 'NOT'} {side['release']:7s} {said} {side.get('seconds','')}"


if __name__ == "__main__":
    raise SystemExit(main())
