"""One training run from start to end: `train(config)`."""

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.heldout import HeldOutScore
from flatline.live.held import elements
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.recorder.attach import attach
from flatline.signals import terminated_like_interrupted
from flatline.stats import Estimate
from flatline.text import visible
from flatline.trace.folder import read_run
from flatline.trace.lock import LOCK, is_held
from flatline.training.effective import (
    OptimizerCheck,
    check_arguments,
    check_lora,
    check_sizes,
    effective,
)
from flatline.training.heldout import HeldOut
from flatline.training.memory import keep_freed_memory
from flatline.training.progress import ProgressDisplay
from flatline.training.rewards import says_right
from flatline.training.trainer import Built, build

ALMOST_NOTHING = 2**20
"""Bytes; a disk with less is full."""
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
    refuse_unwritable(folder)
    _refuse_missing_reporters(config)
    checkpoint = _checkpoint(config)
    _say_what_broke_off(folder, checkpoint)
    keep_freed_memory()
    built = build(config)
    trainer = built.trainer
    check_all(built)
    _refuse_full_disk(built)
    heldout = _add_callbacks(built)
    if heldout and checkpoint is not None:
        heldout.take_up(_steps_of(checkpoint))
    if trainer.accelerator.is_main_process and built.rollouts.chat.notice:
        print(f"flatline: {built.rollouts.chat.notice}", file=sys.stderr)
    if checkpoint is not None and _steps_of(checkpoint) >= trainer.args.max_steps > 0:
        _train_no_more(trainer)
    start = time.perf_counter()
    with terminated_like_interrupted(), _recorded(built, folder), _nothing_lost(built):
        trainer.train(resume_from_checkpoint=checkpoint)
        _save_model(trainer, folder / MODEL)
    return Result(
        output_dir=folder,
        steps=trainer.state.global_step,
        scores=list(heldout.scores) if heldout else [],
        log=list(trainer.state.log_history),
        seconds=time.perf_counter() - start,
    )


def _save_model(trainer: GrpoTrainer, folder: Path) -> None:
    """Beside its place and then into it: half a model would be taken for a whole one."""
    half = folder.with_name(f".{folder.name}.half")
    trainer.save_model(str(half))
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        (half / "training_args.bin").unlink(missing_ok=True)  # a pickle; run.json has it
        if folder.exists():
            shutil.rmtree(folder)
        half.replace(folder)


def check_all(built: Built) -> None:
    """The trainer is set up as asked; what only exists later is checked when it does."""
    check_arguments(built.trainer, built.arguments)
    check_sizes(built.trainer, built.config)
    check_lora(built.trainer, built.config)


@contextmanager
def _recorded(built: Built, folder: Path) -> Iterator[None]:
    """The run's trace in its folder; `run.json` also has what was asked for and what is done."""
    attachment = attach(built.trainer, folder, correct=says_right(built.trainer.reward_func_names))
    attachment.says_what_is_next = False  # whoever trains with this says it
    attachment.note(
        fault=built.config.fault,
        requested=built.config.to_dict(),
        effective=effective(built.trainer, built.config),
        trl=built.arguments,
    )
    try:
        yield
    finally:
        # A run that broke off has not been closed by its end.
        attachment.close(clean=False)


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
    found = _newest(folder) if given == LAST else Path(given)
    if found is None or not _is_whole(found):
        raise ConfigError(
            f"--resume-from-checkpoint {given}: there is no finished checkpoint in "
            f"{found or folder}.\nGive a folder such as {folder / 'checkpoint-10'}, or leave the "
            "flag out to start again. Checkpoints are written with `--save-steps N`."
        )
    return str(found)


def _say_what_broke_off(folder: Path, checkpoint: str | None) -> None:
    """A run that is begun again takes the place of the one that lies there."""
    try:
        run = read_run(folder)
    except (OSError, ValueError):
        return  # the recording will say so
    if not run or run.get("ended") or os.environ.get("RANK", "0") != "0":
        return
    if is_held(folder / f"{LOCK}.r0"):  # this one is refused in a moment
        return
    newest = _newest(folder)
    if checkpoint is not None:
        text = f"The run in {folder} was not closed; it goes on from {checkpoint}."
    elif newest is not None:
        text = f"The run in {folder} was not closed; this one starts again and takes its place. "
        text += f"`--resume-from-checkpoint last` would go on from {newest}."
    else:
        text = f"The run in {folder} was not closed and left no checkpoint; this one starts again."
    print(f"flatline: {visible(text)}", file=sys.stderr)


def _newest(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; a killed run may leave half a one."""
    numbered = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    whole = [path for path in numbered if _is_whole(path)]
    return max(whole, key=lambda path: int(path.name[11:]), default=None)


def _steps_of(checkpoint: str) -> int:
    state = json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))
    return int(state["global_step"])


def _train_no_more(trainer: GrpoTrainer) -> None:
    """Only evaluate and save: after a checkpoint of the last step transformers takes one more."""

    def nothing_left(*_: Any, **__: Any) -> None:
        trainer.control.should_training_stop = True

    trainer._run_epoch = nothing_left


def _is_whole(checkpoint: Path) -> bool:
    """transformers writes the trainer's state last."""
    try:
        return bool(json.loads((checkpoint / "trainer_state.json").read_text()))
    except (OSError, ValueError):
        return False


def refuse_no_folder(folder: Path) -> None:
    """What can never be a folder, told without making one."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
    except OSError as error:
        raise _unwritable(folder, error) from error
    if not there.is_dir():
        code = errno.EEXIST if there == folder else errno.ENOTDIR
        raise _unwritable(folder, OSError(code, os.strerror(code)))


def refuse_unwritable(folder: Path) -> None:
    """Better now than after an hour of training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".flatline"
        probe.write_bytes(b"x" * 4096)
        probe.unlink(missing_ok=True)  # every process of a run looks, and all at the same time
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"--output-dir {folder} cannot be written: {error.strerror}.\n"
        "Checkpoints and logs would be lost.\nGive a folder that you may write to."
    )


@contextmanager
def _nothing_lost(built: Built) -> Iterator[None]:
    """What breaks a run off leaves a checkpoint of the last whole step and the terminal whole."""
    try:
        yield
    except Exception as error:
        # Weights are written by libraries that raise errors of their own when the disk is full.
        if _is_of_the_disk(error) or _free(Path(built.config.output_dir)) < ALMOST_NOTHING:
            raise _stopped(built, error) from error
        _keep_last_step(built)
        raise
    except KeyboardInterrupt:
        _keep_last_step(built)
        raise
    finally:
        for callback in built.trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressDisplay):
                callback.close()


def _is_of_the_disk(error: Exception) -> bool:
    """A lost server is an `OSError` as well, and then there is room for a checkpoint."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
    return isinstance(error, OSError) and error.errno in full


def _keep_last_step(built: Built) -> None:
    """Save the weights of the last whole step, if they are not saved yet."""
    trainer = built.trainer
    step, folder = trainer.state.global_step, Path(built.config.output_dir)
    checkpoint = folder / f"checkpoint-{step}"
    if not step or trainer.args.world_size > 1 or _is_whole(checkpoint):
        return
    with suppress(Exception):  # the error that broke the run off is the one to be seen
        trainer._save_checkpoint(trainer.model, trial=None)
        print(
            f"Step {step} is saved in {checkpoint}; go on with `--resume-from-checkpoint last`.",
            file=sys.stderr,
        )


def _stopped(built: Built, error: Exception) -> ConfigError:
    folder = Path(built.config.output_dir)
    return ConfigError(
        f"The run stopped at step {built.trainer.state.global_step}: {error}.\n"
        f"{folder} has {_free(folder) / 2**20:.0f} MiB free. Finished checkpoints are whole.\n"
        "Make room and go on with `--resume-from-checkpoint last`."
    )


def _free(folder: Path) -> int:
    """Bytes free on the disk of the folder."""
    return shutil.disk_usage(folder).free


def _refuse_full_disk(built: Built) -> None:
    """Trained weights and the two means that Adam keeps of each must find room."""
    folder = Path(built.config.output_dir)
    trained = [p for p in built.trainer.model.parameters() if p.requires_grad]
    needed = sum(3 * elements(p) * p.element_size() for p in trained) + ALMOST_NOTHING
    if _free(folder) < needed:
        raise ConfigError(
            f"A checkpoint takes about {needed / 2**20:.0f} MiB, and {folder} has "
            f"{_free(folder) / 2**20:.0f} MiB free.\n"
            "The run would be lost when it is saved.\n"
            "Make room, or give another --output-dir."
        )


def _refuse_missing_reporters(config: RunConfig) -> None:
    """transformers would say so only after the model is loaded."""
    for name in config.report_to.split(","):
        name = name.strip()
        if name != "none" and find_spec(name.replace("-", "_")) is None:
            raise ConfigError(
                f"--report-to {name} needs the package {name}, which is not installed.\n"
                f"Type `pip install {name}`, or `--report-to none`."
            )
