"""Other tools on the runs of the museum, as `bench.peers` asks them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers import ask
from flatline.trace import Trace


def ask_peers(name: str, sides: Mapping[str, Any], out: Path, pythons: Mapping[str, str]) -> None:
    """Adds what each peer says of each release to its result; nothing where no step was
    recorded."""
    for side in sides.values():
        run = out / name / side["release"] / "run"
        trace = Trace.open(run) if pythons and run.is_dir() else None
        if trace is not None and len(trace.steps):
            said = {peer: str(ask(peer, python, trace)) for peer, python in pythons.items()}
            side["peers"] = side.get("peers", {}) | said
