"""One training run from start to end: `train(config)`."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_utils import get_last_checkpoint

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.evaluate import write_atomically
from flatline.stats import Estimate
from flatline.training.effective import (
    OptimizerCheck,
    as_json,
    check_arguments,
    check_lora,
    check_sizes,
    effective,
)
from flatline.training.heldout import HeldOut, HeldOutScore
from flatline.training.progress import ProgressDisplay
from flatline.training.trainer import Built, build

MODEL = "model"
"""Folder of the trained weights inside the run's folder."""
LAST = "last"
"""What `--resume-from-checkpoint` takes for the newest checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    output_dir: Path
    """The run's folder."""
    steps: int
    """Optimizer steps done, those before a resumption included."""
    scores: list[HeldOutScore]
    """Held-out evaluations; the first is before training."""
    log: list[dict[str, Any]]
    """What the trainer logged, line by line."""
    seconds: float
    """Wall time of the training loop, evaluations included."""

    @property
    def gain(self) -> Estimate | None:
        """Held-out reward after minus before, play by play."""
        return self.scores[-1].since(self.scores[0]) if len(self.scores) > 1 else None

    def mean(self, name: str) -> float:
        """Mean of a logged value over the log lines that have it."""
        values = [float(line[name]) for line in self.log if line.get(name) is not None]
        return sum(values) / len(values) if values else float("nan")


def train(config: RunConfig) -> Result:
    """Train, evaluate and save. The folder holds the config, checkpoints and evaluations."""
    folder = Path(config.output_dir)
    _refuse_unwritable(folder)
    checkpoint = _checkpoint(config)
    built = build(config)
    trainer = built.trainer
    check_all(built)
    heldout = _add_callbacks(built)
    if trainer.accelerator.is_main_process:
        write_run_file(built, folder)
    start = time.perf_counter()
    with _nothing_lost(built):
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model(str(folder / MODEL))
    return Result(
        output_dir=folder,
        steps=trainer.state.global_step,
        scores=list(heldout.scores) if heldout else [],
        log=list(trainer.state.log_history),
        seconds=time.perf_counter() - start,
    )


def check_all(built: Built) -> None:
    """The trainer is set up as asked; what only exists later is checked when it does."""
    check_arguments(built.trainer, built.arguments)
    check_sizes(built.trainer, built.config)
    check_lora(built.trainer, built.config)


def write_run_file(built: Built, folder: Path) -> None:
    """`run.json`: what was asked for and what is really done."""
    facts = {
        "requested": built.config.to_dict(),
        "effective": effective(built.trainer, built.config, built.rollouts),
        "trl": built.arguments,
    }
    write_atomically(folder / "run.json", [as_json(facts)])


def _add_callbacks(built: Built) -> HeldOut | None:
    trainer, config = built.trainer, built.config
    for kind in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(kind)
    trainer.add_callback(OptimizerCheck(trainer, config))
    trainer.add_callback(ProgressDisplay())
    if not built.heldout:
        return None
    heldout = HeldOut(trainer, built.rollouts, built.heldout, seed=config.eval_seed)
    trainer.add_callback(heldout)
    return heldout


def _checkpoint(config: RunConfig) -> str | None:
    given = config.resume_from_checkpoint
    if given is None:
        return None
    folder = Path(config.output_dir)
    found: str | None = given
    if given == LAST:
        found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if found is None or not (Path(found) / "trainer_state.json").is_file():
        raise ConfigError(
            f"--resume-from-checkpoint {given}: there is no finished checkpoint in "
            f"{found or folder}.\nGive a folder such as {folder / 'checkpoint-10'}, or leave the "
            "flag out to start anew. Checkpoints are written with `--save-steps N`."
        )
    return found


def _refuse_unwritable(folder: Path) -> None:
    """Better now than after an hour of training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".flatline"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"--output-dir {folder} cannot be written: {error.strerror}.\n"
            "Checkpoints and logs would be lost.\nGive a folder that you may write to."
        ) from error


@contextmanager
def _nothing_lost(built: Built) -> Iterator[None]:
    """What breaks a run off leaves a checkpoint of the last whole step and the terminal whole."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"The run stopped at step {built.trainer.state.global_step}: {error}.\n"
            f"{_free(Path(built.config.output_dir))}\n"
            "Make room and go on with `--resume-from-checkpoint last`."
        ) from error
    finally:
        for callback in built.trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressDisplay):
                callback.close()


def _free(folder: Path) -> str:
    free = shutil.disk_usage(folder).free / 2**20
    return f"{folder} has {free:.0f} MiB free."
