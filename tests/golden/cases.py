"""Every case of the corpus, by group: what there is on disk, so that nothing is left out."""

import functools
import json
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import flatline
from tests.golden.entry import Entry, entry_of
from tests.golden.live import live_cases

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "docs" / "real-logs"
FIXTURES = ROOT / "tests" / "fixtures"
RECORDINGS = Path(__file__).parent / "recordings"
BESIDE = ("first", "readings.json", "fourth-readings.json", "make_logs.py.txt", "by-hand.json")
"""What lies beside the logs and is none."""
FOLDERS = ("verl/trace", "verl/rollouts", "nemo_rl", "openrlhf", "prime_rl", "skyrl/dumped_evals")
"""Folders of the fixtures that are read as one."""

Case = Callable[[], Entry]


@functools.cache
def every_case() -> dict[str, dict[str, Case]]:
    """Group, name, how it is asked."""
    return {
        "logs": _files(LOGS),
        "files": _fixtures(),
        "published": _published(),
        "scripts": _packed("scripts"),
        "museum": _packed("museum"),
        "live": live_cases(),
    }


def _files(folder: Path) -> dict[str, Case]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kept = [path for path in files if not set(path.relative_to(folder).parts) & set(BESIDE)]
    names = [path.relative_to(folder).as_posix() for path in kept]
    return {name: _diagnosed(path, name) for name, path in zip(names, kept, strict=True)}


def _fixtures() -> dict[str, Case]:
    paths = {name: FIXTURES / name for name in FOLDERS}
    paths |= {path.name: path for path in FIXTURES.glob("*.*") if path.suffix != ".json"}
    paths |= {name: ROOT / "examples" / name for name in ("recorded", "trainer_state.json")}
    return {name: _diagnosed(path, name) for name, path in sorted(paths.items())}


def _diagnosed(path: Path, name: str) -> Case:
    return functools.partial(_of_file, path.relative_to(ROOT), name)


def _of_file(path: Path, name: str) -> Entry:
    """What is said of a file names it: so by the same name in every checkout."""
    with chdir(ROOT):
        return entry_of(lambda: flatline.diagnose(path, name=name))


def _published() -> dict[str, Case]:
    """Logs of other people, of which only the figures are kept."""
    kept = json.loads((FIXTURES / "real_logs.json").read_text())
    return {name: functools.partial(_of_figures, name, log) for name, log in sorted(kept.items())}


def _of_figures(name: str, log: dict[str, dict[str, list[float | None]]]) -> Entry:
    columns = log["columns"]
    rows = [
        {column: value for column, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trainer_state.json"
        path.write_text(json.dumps({"logging_steps": log["logging_steps"], "log_history": rows}))
        return entry_of(lambda: flatline.diagnose(path, name=name))


def _packed(group: str) -> dict[str, Case]:
    """Recordings that were made once (`benchmarks/golden_recordings.py`), each in a pack."""
    packs = sorted((RECORDINGS / group).glob("*.tar.xz"))
    return {pack.name.removesuffix(".tar.xz"): functools.partial(_recorded, pack) for pack in packs}


def _recorded(pack: Path) -> Entry:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(pack) as packed:
        packed.extractall(folder, filter="data")
        return entry_of(lambda: flatline.diagnose(Path(folder) / "run", name=pack.name))
