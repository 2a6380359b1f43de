"""One run of one arm: its folder, its process, its outcome.

    RUNS/<digest of the arm>-s<seed>/
      config.toml    what `flatline train --config` was given; absent for a command
      log.txt        all that the command printed
      announced      where the run was recorded, said by what recorded it; absent where the trainer
                     only left its log here
      ended          the command ended well, and how long it took
      outcome.json   written last: the run is finished, and is never run again

A folder with neither of the last two is a run that crashed; it is emptied and run again. One that
ended well and was not measured any more is measured.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flatline.config import RunConfig, toml_of
from flatline.errors import ConfigError, FlatlineError, TraceError
from flatline.experiment import supervise
from flatline.experiment.commands import RUN_DIR, SEED, rendered
from flatline.experiment.outcome import OUTCOME_FILE, measure
from flatline.experiment.plan import Arm, Role
from flatline.files import json_in, write_atomically
from flatline.trace.announce import VARIABLE, announced, say
from flatline.trace.importers import open_log

GRACE = 10.0
"""Seconds that a command has to end by itself when it is asked to."""
LOG_FILE, CONFIG_FILE = "log.txt", "config.toml"
ANNOUNCED_FILE, ENDED_FILE = "announced", "ended"
SAY_AFTER = 5.0
"""Seconds after which a wait for somebody else's run is said."""
KILLED = 128 + 9
"""Exit code of what SIGKILL ended."""
TAIL = 12
"""Lines of the log that a failure shows."""
_POLL = 0.1
FLATLINE = (sys.executable, "-P", "-c", "from flatline.cli import main; main()")
"""What is typed as `flatline`, of this very installation."""


class Stopped(Exception):
    """The experiment ends before this run does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run, ready to be started anywhere that sees its folder."""

    arm: str
    """Name of the arm."""
    role: Role
    """What the arm is there for."""
    seed: int
    """Matched across the arms."""
    folder: str
    """Of the run, absolute."""
    command: tuple[str, ...]
    """What is started, without a shell."""
    config: str | None
    """Text of the config file that the command reads."""
    directory: str
    """Where the command is started."""
    steps: int | None
    """Optimizer steps planned, where the config says so."""

    @property
    def path(self) -> Path:
        return Path(self.folder)


def job_of(arm: Arm, seed: int, runs: Path) -> Job:
    """The run of an arm on a seed."""
    folder = folder_of(arm, seed, runs).resolve()
    config = _config(arm, seed, folder)
    return Job(
        arm=arm.name,
        role=arm.role,
        seed=seed,
        folder=str(folder),
        command=_command(arm, seed, folder),
        config=None if config is None else toml_of(config.to_dict()),
        directory=os.getcwd(),
        steps=None if config is None else config.length[0],
    )


def folder_of(arm: Arm, seed: int, runs: Path) -> Path:
    """Where the run of an arm on a seed lies, whether or not it was made."""
    return runs / f"{arm.digest}-s{seed}"


def run(
    job: Job,
    *,
    environment: Mapping[str, str] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> str | None:
    """Run it, unless it is finished. Returns what went wrong, or None."""
    with _alone(job.path, stopping) as lock:
        if (job.path / OUTCOME_FILE).exists():
            return None
        start = time.perf_counter()
        if _ended(job) is None:
            _prepare(job)
            code = _supervised(job, environment or {}, lock, stopping)
            if code:
                killed = " (killed, often for want of memory)" if code == KILLED else ""
                said = f"{shlex.join(job.command)} ended with exit code {code}{killed}."
                return f"{said}\n{_tail(job.path)}"
        return _measured(job, _ended(job) or time.perf_counter() - start)


def _measured(job: Job, seconds: float) -> str | None:
    """What is wrong with a run that ended well, or None."""
    try:
        measure(job.path, _recorded(job), seconds=seconds)
    except FlatlineError as error:
        # To be put right in the command, which the next invocation then runs again.
        (job.path / ENDED_FILE).unlink(missing_ok=True)
        return str(error)
    except OSError as error:
        raise unwritable(job.path, error) from error
    return None


def _ended(job: Job) -> float | None:
    """How many seconds the command took, if it ended well."""
    try:
        return float(json_in(job.path / ENDED_FILE)["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _config(arm: Arm, seed: int, folder: Path) -> RunConfig | None:
    if arm.config is None:
        return None
    return replace(arm.config, seed=seed, output_dir=str(folder), run_name=None)


def _command(arm: Arm, seed: int, folder: Path) -> tuple[str, ...]:
    if arm.config is not None:
        return (*FLATLINE, "train", arm.config.task, "--config", str(folder / CONFIG_FILE))
    assert arm.command is not None
    return rendered(arm.command, {**arm.values, SEED: seed, RUN_DIR: folder})


@contextmanager
def _alone(folder: Path, stopping: Callable[[], bool]) -> Iterator[int]:
    """Nobody else runs this run: two experiments may share it, and a killed one may still end."""
    import fcntl

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder.parent / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(folder.parent, error) from error
    waited = 0.0
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _wait_or_stop(stopping)
                waited += _POLL
                if waited - _POLL < SAY_AFTER <= waited:
                    say(f"waiting for {folder}, which another process is making.")
            except OSError:
                break  # some network file systems have no locks
        yield handle
    finally:
        os.close(handle)


def _wait_or_stop(stopping: Callable[[], bool]) -> None:
    if stopping():
        raise Stopped
    time.sleep(_POLL)


def _prepare(job: Job) -> None:
    """An empty folder; what a crashed run left there must not be taken for this one's."""
    try:
        if job.path.exists():
            shutil.rmtree(job.path)
        job.path.mkdir(parents=True)
        if job.config is not None:
            write_atomically(job.path / CONFIG_FILE, [job.config])
    except OSError as error:
        raise unwritable(job.path, error) from error


def unwritable(folder: Path, error: OSError) -> ConfigError:
    """A full or read-only disk, in words."""
    return ConfigError(
        f"{folder} cannot be written: {error.strerror}.\n"
        "What comes next would leave nothing behind; what has finished is kept.\n"
        "Make room there and type the same command, or give another folder for runs."
    )


def _supervised(
    job: Job, environment: Mapping[str, str], lock: int, stopping: Callable[[], bool]
) -> int:
    """Exit code of the command. However this function is left, the command has ended."""
    told = {VARIABLE: str(job.path / ANNOUNCED_FILE)}
    with (job.path / LOG_FILE).open("w", encoding="utf-8") as log:
        log.write(f"$ {shlex.join(job.command)}\n")
        log.flush()
        process = subprocess.Popen(
            [
                *(sys.executable, "-IS", supervise.__file__),
                *(str(GRACE), str(job.path / ENDED_FILE)),
                *job.command,
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.directory,
            env={**os.environ, **environment, **told},
            start_new_session=True,
            pass_fds=(lock,),  # held until the command has ended, even if this process is killed
        )
    assert process.stdin is not None
    try:
        return _waited(process, stopping)
    finally:
        with suppress(OSError):
            process.stdin.close()
        process.wait()


def _waited(process: "subprocess.Popen[bytes]", stopping: Callable[[], bool]) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL)
        if stopping():
            raise Stopped


def _recorded(job: Job) -> Path:
    """The folder of the trace that the command recorded, or of the log that its trainer left."""
    found = announced(job.path / ANNOUNCED_FILE)
    if not found:
        _refuse_without_log(job)
        return job.path
    if len(found) > 1:
        raise ConfigError(
            f"{shlex.join(job.command)} recorded {len(found)} runs: "
            f"{', '.join(map(str, found[:3]))}.\n"
            "Which one is meant is not clear.\nLet the command train once."
        )
    return found[0]


def _refuse_without_log(job: Job) -> None:
    try:
        open_log(job.path)
    except TraceError as error:
        raise ConfigError(
            f"{shlex.join(job.command)} ended well, but recorded nothing that can be read.\n"
            f"{error}\n"
            "Without a trace or a log a run can be neither measured nor diagnosed.\n"
            "Let the trainer write its log into {run_dir}, or add `flatline.attach(trainer, "
            f"run_dir)` to the script before `trainer.train()`.\n{_tail(job.path)}"
        ) from error


def _tail(folder: Path) -> str:
    """The end of what the command printed."""
    text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    lines = [line[-300:] for line in text.splitlines()[1:] if line.strip()][-TAIL:]
    shown = "\n".join(f"  {line}" for line in lines) or "  (it printed nothing)"
    return f"The end of {folder / LOG_FILE}:\n{shown}"
