"""Lines of Python by package, at two commits: python scripts/lines.py BEFORE [AFTER]

Every line of `src/flatline`, `bench`, `museum` and the tests counts, blank ones and comments too.
"""

import subprocess
import sys
from collections import Counter
from pathlib import PurePosixPath

COUNTED = ("src", "bench", "museum", "tests")


def main() -> None:
    before, after = [*sys.argv[1:], "HEAD"][:2]
    counts = [lines(before), lines(after)]
    print(f"| package | {before} | {after} |\n|---|---|---|")
    for package in sorted(set().union(*counts)):
        print(f"| `{package}` | " + " | ".join(f"{one[package]:,}" for one in counts) + " |")
    for name, whole in (("source", is_source), ("all", lambda _: True)):
        sums = [sum(n for package, n in one.items() if whole(package)) for one in counts]
        print(f"| **{name}** | " + " | ".join(f"**{one:,}**" for one in sums) + " |")


def is_source(package: str) -> bool:
    return package.startswith(("flatline", "bench"))


def lines(commit: str) -> Counter[str]:
    """`git grep` counts the lines of every file at once: each of them has a place in each line."""
    said = git("grep", "--count", "--no-color", "-e", "", commit, "--", *COUNTED)
    found: Counter[str] = Counter()
    for line in said.splitlines():
        path, _, count = line.partition(":")[2].rpartition(":")
        if path.endswith(".py"):
            found[package_of(PurePosixPath(path))] += int(count)
    return found


def package_of(path: PurePosixPath) -> str:
    if path.parts[0] != "src":
        return path.parts[0]
    return "/".join(path.parts[1:3]) if len(path.parts) > 3 else "flatline"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
