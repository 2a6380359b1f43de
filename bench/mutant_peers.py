"""Other tools on the traces of mutants, as `bench.peers` asks them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bench.peers import Opinion, ask, version_of
from flatline.bench.mutants.results import PEERS_FILE
from flatline.bench.mutants.study import STUDY_FILE, TRACES, rows_in
from flatline.errors import FlatlineError
from flatline.trace import Trace


def ask_peers(folder: Path, pythons: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Ask other tools about every trace below a folder; answers are kept beside the study."""
    versions = {name: version_of(name, python) for name, python in pythons.items()}
    for study in sorted(file.parent for file in folder.rglob(STUDY_FILE)):
        done = {row["run"] for row in rows_in(study / PEERS_FILE)}
        traces = [one for one in sorted((study / TRACES).glob("*")) if one.name not in done]
        for trace in traces:
            say(f"{', '.join(versions)}: {study.name}/{trace.name}")
            said = {
                name: replace(_asked(name, python, trace), version=versions[name]).to_json()
                for name, python in pythons.items()
            }
            with (study / PEERS_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": trace.name, "said": said}) + "\n")


def _asked(name: str, python: str, trace: Path) -> Opinion:
    try:
        return ask(name, python, Trace.open(trace))
    except FlatlineError as error:
        return Opinion(failure=str(error))
