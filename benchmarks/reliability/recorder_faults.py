"""Raises an error in every function of the recorder, in one training after the other.

    python benchmarks/reliability/recorder_faults.py [--pretended]

Which functions there are is found by watching a training, so a new one is included. Each of them
raises when it is called (in whatever thread), and the training must not notice: all its steps are
taken, its weights are bit for bit those of a training that nobody records, and the error is said
once. The SHELLS are left out: a few lines each that hold nothing but the guard. They are what is
trusted.
"""

import argparse
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path.append(str(Path(__file__).parent.parent.parent))

import torch
from tests.test_attach import trainer_of, weights_of

import flatline

RECORDER = tuple(str(Path(flatline.__file__).parent / part) for part in ("trace", "live"))
SHELLS = (
    "Attachment._patch.<locals>.around",
    "Attachment.watch",
    "Attachment.close",
    "Guard.__call__",
    "Guard.stop",
    "Once.__init__",
    "Once.__call__",
    "Once.through",
    "Patch.__call__",
    "StepEnd.on_step_end",
    "StepWatch.on_train_end",
    "Writer._work",
    "_Ear.__call__",
    "_guarded.<locals>.call",
    "hearing.<locals>.generate",
    "listening.<locals>.around",
    "watching_attention.<locals>.hook_at.<locals>.hook",
)
"""Between the trainer and the recorder; the trainer calls them, and they call the trainer."""

Look = Callable[[FrameType, str, Any], None]
Weights = dict[str, torch.Tensor]
Training = Callable[[Path, Look | None], Weights]
"""Trains in a folder, with somebody looking at every call of the recorder; the weights after it."""


class Injected(RuntimeError):
    """The error."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretended", action="store_true", help="a trainer that is not TRL's")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        codes, noticed = strike_all(folder, trl if not given.pretended else pretended)
    for name, problem in noticed.items():
        print(f"{name}: {problem}")
    print(f"{len(codes)} functions of the recorder raised an error, each in a training of its own.")
    print(f"Trainings that did not notice: {len(codes) - len(noticed)}.")
    sys.exit(bool(noticed))


def strike_all(folder: Path, train: Training) -> tuple[list[str], dict[str, str]]:
    """The functions that raised, and those of them that were noticed, with what."""
    plain = train(folder / "plain", None)
    codes = reached(folder / "watched", train)
    noticed = {
        code.co_qualname: problem
        for number, code in enumerate(codes)
        if (problem := struck(folder / str(number), code, plain, train))
    }
    return [code.co_qualname for code in codes], noticed


def reached(folder: Path, train: Training) -> list[CodeType]:
    """Every function of the recorder that a training calls, but for the shells."""
    found: dict[CodeType, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        if _is_ours(frame.f_code) and frame.f_code.co_qualname not in SHELLS:
            found[frame.f_code] = None

    train(folder, look)
    return list(found)


def struck(folder: Path, wanted: CodeType, plain: Weights, train: Training) -> str:
    """What was noticed of an error in this function; nothing is as it should be."""
    raised = 0

    def strike(frame: FrameType, event: str, _: Any) -> None:
        nonlocal raised
        if frame.f_code is wanted and not raised:
            raised += 1
            raise Injected("a case nobody thought of")

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            weights = train(folder, strike)
    except Injected:
        return "it reached the training"
    count = said.getvalue().count("nobody thought of")
    if not all(torch.equal(plain[name], weights[name]) for name in plain):
        return "other weights"
    if not raised:
        return "it was never called"
    return "" if count == 1 else f"said {count} times"


def trl(folder: Path, look: Look | None) -> Weights:
    """TRL's own trainer for two steps, recorded where somebody looks at the recorder."""

    trainer = trainer_of(folder, beta=0.1, max_steps=2)
    torch.manual_seed(3)
    _recorded(trainer, folder, trainer.train, look)
    assert trainer.state.global_step == 2
    return weights_of(trainer)


def pretended(folder: Path, look: Look | None) -> Weights:
    """The same in milliseconds."""
    from pretended import Pretended

    torch.manual_seed(3)
    trainer = Pretended()
    _recorded(trainer, folder, lambda: trainer.train(2), look)
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def _recorded(trainer: Any, folder: Path, train: Callable[[], object], look: Look | None) -> None:
    if look is None:
        train()
        return
    attachment = flatline.attach(trainer, folder / "run")
    attachment.close(clean=False)  # its thread began before anybody looked
    with _looking(look), redirect_stdout(io.StringIO()):
        train()


@contextmanager
def _looking(look: Look) -> Iterator[None]:
    threading.settrace(look)
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(RECORDER) and not code.co_name.startswith("<")


if __name__ == "__main__":
    main()
