"""How long a newcomer waits: from nothing to the first answer.

    python benchmarks/newcomer.py [log] [log-uv] [checkup]
    python benchmarks/newcomer.py wheels

`log`: a new virtual environment, flatline's wheel without torch, and a diagnosis of a
`trainer_state.json`; `log-uv`: the same with uv, which has to be installed. `checkup`: with the
training extra, and a checkup of somebody's own TRL script with one line added. Nothing is cached.
The wheel is built first, which a newcomer does not wait for. Prints a Markdown table: seconds of
the clock, which depend on the network and on what else the machine does, and seconds of one core.

`wheels`: what each package of the base and of the extras `pages` and `query` costs pip, one run
each: unpacking and compiling to bytecode, without the start of pip itself and without the network.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAKEN = {"src", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
"""What a wheel is made of."""
LINE = "import flatline; print(flatline.checkup(trainer).summary)\n"
PINNED = ["--quiet", "--constraint", str(ROOT / "constraints.txt")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a newcomer types; `{python}` is that of the new environment."""

    what: str
    """What they want."""
    environment: list[str]
    """Makes the environment; its folder is added."""
    installer: list[str]
    """Installs; what to install is added."""
    wanted: list[list[str]]
    """What to install, one call each."""
    answer: list[str]
    """Gives the answer."""


def main() -> None:
    if sys.argv[1:] == ["wheels"]:
        with tempfile.TemporaryDirectory() as name:
            return wheels(Path(name))
    print("| from nothing to | environment | install | first answer | in all | of one core |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways = ways_in(folder, build_wheel(folder))
        for one in sys.argv[1:] or ["log", "checkup"]:
            before = _core_seconds()
            waited = _timed(folder / one, ways[one])
            print(_row(ways[one].what, waited, _core_seconds() - before), flush=True)


def build_wheel(folder: Path) -> Path:
    """The wheel, from a copy of what git knows and does not ignore."""
    source = folder / "source"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file() and name.split("/")[0] in TAKEN:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, *command, str(source)], check=True)
    return next(folder.glob("*.whl"))


def wheels(folder: Path) -> None:
    """Print what every wheel of a plain installation, and of the pages, takes."""
    python, kept = str(folder / "env" / "bin" / "python"), folder / "wheels"
    _spent([sys.executable, "-m", "venv", str(folder / "env")])
    pip = [python, "-m", "pip"]
    wanted = f"{build_wheel(folder)}[pages,query]"
    _spent([*pip, "download", *PINNED, "--no-cache-dir", "--dest", str(kept), wanted])
    start = _spent([*pip, "--version"])
    costs = []
    for wheel in kept.iterdir():
        command = [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
        costs.append((max(0.0, _spent(command) - start), wheel))
    print("| package | MB | files | of one core |\n|---|---|---|---|")
    for seconds, wheel in sorted(costs, reverse=True):
        size, files = wheel.stat().st_size / 1e6, len(zipfile.ZipFile(wheel).namelist())
        print(f"| {wheel.name.split('-')[0]} | {size:.1f} | {files} | {seconds:.1f} s |")


def _spent(command: list[str]) -> float:
    """Seconds of one core."""
    before = _core_seconds()
    subprocess.run(command, check=True, capture_output=True)
    return _core_seconds() - before


def ways_in(folder: Path, wheel: Path) -> dict[str, Way]:
    pip = ["{python}", "-m", "pip", "install", "--no-cache-dir", *PINNED]
    uv = ["uv", "pip", "install", "--no-cache", "--python", "{python}", *PINNED]
    venv = [sys.executable, "-m", "venv"]
    code = "from flatline.cli import main; main()"
    log = ["{python}", "-c", code, "diagnose", str(_log(folder)), "--fail-on", "never"]
    script = ["{python}", str(_script(folder))]
    plain = [[str(wheel)]]
    # The pinned torch is the small build; what would come by itself weighs gigabytes.
    trains = [["torch"], [f"{wheel}[train]"]]
    what = "a diagnosis of `trainer_state.json`"
    own = "a checkup of one's own TRL script"
    return {
        "log": Way(what=what, environment=venv, installer=pip, wanted=plain, answer=log),
        "log-uv": Way(
            what=f"{what}, with uv",
            environment=["uv", "venv", "--quiet"],
            installer=uv,
            wanted=plain,
            answer=log,
        ),
        "checkup": Way(what=own, environment=venv, installer=pip, wanted=trains, answer=script),
    }


def _log(folder: Path) -> Path:
    history = [
        {"step": step, "reward": 0.6 + 0.01 * (step % 3), "kl": 1e-4 * step, "grad_norm": 0.5,
         "loss": 0.001, "entropy": 0.8, "learning_rate": 1e-6, "frac_reward_zero_std": 0.2}
        for step in range(1, 101)
    ]  # fmt: skip
    log = folder / "trainer_state.json"
    log.write_text(json.dumps({"log_history": history}))
    return log


def _script(folder: Path) -> Path:
    """The stock script of the tests, which knows nothing of flatline, with the line added."""
    text = (ROOT / "tests" / "stock" / "reward_function.py").read_text()
    script = folder / "train.py"
    script.write_text(text.split("trainer.train()")[0] + LINE)
    return script


def _timed(place: Path, way: Way) -> list[float]:
    """Seconds for the environment, the installation and the answer."""
    marks = [time.perf_counter()]
    _run(place, [*way.environment, str(place)])
    marks.append(time.perf_counter())
    for wanted in way.wanted:
        _run(place, [*way.installer, *wanted])
    marks.append(time.perf_counter())
    print(_run(place, way.answer)[:400], file=sys.stderr)
    marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]


def _run(place: Path, command: list[str]) -> str:
    model = ROOT / "src" / "flatline" / "training" / "lab" / "checkpoint"
    told = {"MODEL": str(model), "OUT": str(place / "out"), "OMP_NUM_THREADS": "1"}
    python = str(place / "bin" / "python")
    typed = [python if word == "{python}" else word for word in command]
    done = subprocess.run(
        typed, env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(typed)}\n{done.stderr[-3000:]}")
    return done.stdout


def _core_seconds() -> float:
    """What finished children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(what: str, seconds: list[float], core: float) -> str:
    cells = " | ".join(f"{one:.1f} s" for one in [*seconds, sum(seconds), core])
    return f"| {what} | {cells} |"


if __name__ == "__main__":
    main()
