"""What a result was made with."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import flatline


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Installed versions by name."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "from source"
    return found


def source_digest() -> str:
    """Of all our code: two cells that differ here were not made by the same flatline."""
    package = Path(flatline.__file__).parent
    total = sha256()
    for path in sorted(package.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]
