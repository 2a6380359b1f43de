"""A diagnosis written back to where the run is tracked.

    wandb:ENTITY/PROJECT/RUN, wandb:FOLDER     summary values, and an alert where something is wrong
    mlflow:URI#RUN                             tags `flatline.*`, and `flatline/diagnosis.md`
    tensorboard:FOLDER                         a text
    trackio:PROJECT/RUN                        a report, and an alert where something is wrong

`parse` says what is wrong with a target before anything is read, as far as that is known without
its client; `publish` writes. A client is imported only when it is written to.
"""

import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from flatline.errors import ConfigError, FlatlineError

if TYPE_CHECKING:
    from flatline.diagnosis.renderers.trackers.message import Message
    from flatline.diagnosis.report import Report

__all__ = ["Target", "parse", "publish"]


class Writer(Protocol):
    """The module of a tracker."""

    def check(self, where: str) -> None:
        """Raise what is wrong with a place."""

    def write(self, where: str, message: "Message") -> str:
        """Write to it, and say where that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracker:
    """One kind of target."""

    clients: tuple[str, ...]
    """Modules that can write to it; one will do."""
    install: str
    """What brings one."""
    example: str
    """A target of this kind."""


TRACKERS = {
    "wandb": Tracker(clients=("wandb",), install="wandb", example="wandb:ENTITY/PROJECT/RUN"),
    "mlflow": Tracker(
        clients=("mlflow",), install="mlflow", example="mlflow:sqlite:///mlflow.db#RUN"
    ),
    "tensorboard": Tracker(
        clients=("tensorboardX", "torch.utils.tensorboard"),
        install="tensorboardX",
        example="tensorboard:runs/x",
    ),
    "trackio": Tracker(clients=("trackio",), install="trackio", example="trackio:PROJECT/RUN"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to write."""

    kind: str
    """A name of `TRACKERS`."""
    where: str
    """What that tracker calls the run."""


def parse(text: str) -> Target:
    """The target that a text names; its client must be installed."""
    kind, colon, where = text.partition(":")
    tracker = TRACKERS.get(kind)
    if tracker is None or not colon or not where:
        examples = ", ".join(one.example for one in TRACKERS.values())
        raise ConfigError(
            f"`--to {_shown(text)}` names no tracker and run.\nWrite KIND:RUN, as in {examples}."
        )
    if not any(_is_there(name) for name in tracker.clients):
        raise ConfigError(
            f"`--to {_shown(text)}` needs {tracker.clients[0]}, which is not installed.\n"
            "flatline reads trackers by itself, but writes through their own clients.\n"
            f"Type `pip install {tracker.install}`."
        )
    _writer(kind).check(where)
    return Target(kind=kind, where=where)


def publish(report: "Report", target: Target) -> str:
    """Write the report to a tracker; returns where it is now."""
    from flatline.diagnosis.renderers.trackers.message import message_of

    writer = _writer(target.kind)
    try:
        with redirect_stdout(sys.stderr):  # clients talk, and stdout may be JSON
            return writer.write(target.where, message_of(report))
    except FlatlineError:
        raise
    except Exception as error:  # a client raises whatever it likes: no network, no rights, no run
        raise ConfigError(
            f"{target.kind} did not take the diagnosis for {_shown(target.where)!r}: "
            f"{type(error).__name__}: {str(error)[:300]}.\n"
            f"The diagnosis itself is done. Check the run and your login; a target looks like "
            f"`{TRACKERS[target.kind].example}`."
        ) from error


def _writer(kind: str) -> Writer:
    if kind == "wandb":
        from flatline.diagnosis.renderers.trackers import wandb_run

        return wandb_run
    if kind == "mlflow":
        from flatline.diagnosis.renderers.trackers import mlflow_run

        return mlflow_run
    if kind == "tensorboard":
        from flatline.diagnosis.renderers.trackers import tensorboard_text

        return tensorboard_text
    from flatline.diagnosis.renderers.trackers import trackio_run

    return trackio_run


def _shown(where: str) -> str:
    """A target for a message; a password in an address is nobody's business."""
    return re.sub(r"//[^/@]*@", "//...@", where)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing
        return False
