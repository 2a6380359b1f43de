"""W&B: values in the run's summary, and an alert where something is wrong.

A run is named as ENTITY/PROJECT/RUN or PROJECT/RUN, or by its folder, whose file knows its name.
`WANDB_MODE=offline` leaves a folder that `wandb sync` adds to the run later.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flatline.errors import ConfigError
from flatline.trace.importers.wandb_file import find_wandb, identity_of

if TYPE_CHECKING:
    from flatline.diagnosis.renderers.trackers.message import Message


class Name(NamedTuple):
    """How W&B names a run."""

    entity: str | None
    project: str | None
    run: str
    folder: Path | None
    """Where its folder lies; a new one goes beside it."""


def check(where: str) -> None:
    """It must be the name of a run, or a folder that holds one."""
    _name(where)


def write(where: str, message: "Message") -> str:
    """Write into a run that exists."""
    import wandb

    name = _name(where)
    run = wandb.init(
        entity=name.entity,
        project=name.project,
        id=name.run,
        resume="allow",  # offline, W&B cannot know whether the run is there
        dir=name.folder,
        settings=wandb.Settings(silent=True, console="off"),
    )
    try:
        run.summary.update({f"flatline/{key}": value for key, value in message.values.items()})
        if message.alert:
            level = wandb.AlertLevel.ERROR if message.fault else wandb.AlertLevel.WARN
            run.alert(title=message.title, text=message.alert, level=level)
    finally:
        run.finish()
    return f"the summary of W&B run {name.run} ({run.dir if run.offline else run.url})"


def _name(where: str) -> Name:
    path = Path(where).expanduser()
    if path.exists():
        return _of_folder(path)
    parts = where.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise ConfigError(
            f"`wandb:{where}` is neither a folder nor a run.\n"
            "Name the run as ENTITY/PROJECT/RUN or PROJECT/RUN (RUN is the id at the end of its "
            "address), or give its folder: `--to wandb:wandb/offline-run-...`."
        )
    entity = parts[0] if len(parts) == 3 else None
    return Name(entity, parts[-2], parts[-1], None)


def _of_folder(path: Path) -> Name:
    files = [path] if path.is_file() else find_wandb(path)
    if len(files) != 1:
        raise ConfigError(
            f"{path} holds {len(files)} W&B runs, and a diagnosis is of one.\n"
            "Give the folder of one run: `--to wandb:wandb/offline-run-...`."
        )
    entity, project, run = identity_of(files[0])
    beside = files[0].absolute().parent.parent  # the folder `wandb`; W&B wants the one above
    return Name(entity, project, run, beside.parent if beside.name == "wandb" else beside)
