"""What each client of a tracker adds to flatline's own packages; run inside an environment.

python tests/quality/tracker_sizes.py "numpy>=2" "rich>=14" ... -- wandb trackio ...
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def closure(names: list[str]) -> set[str]:
    """The packages that are installed because of these."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if name in found:
            continue
        found.add(name)
        for text in package.requires or ():
            needed = Requirement(text)
            extras = wanted.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(needed)
    return found


def size(names: set[str]) -> int:
    """Bytes of their files."""
    files = [path for name in names for path in distribution(name).files or ()]
    paths = [Path(str(path.locate())) for path in files]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    at = sys.argv.index("--")
    own = closure(sys.argv[1:at])
    for client in sys.argv[at + 1 :]:
        added = closure([client]) - own
        version = distribution(client).version
        print(f"{client} {version}: {size(added) / 2**20:.0f} MiB, {len(added)} packages")
