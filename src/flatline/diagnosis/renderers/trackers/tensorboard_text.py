"""TensorBoard: the page as a text, in an event file of its own beside those of the run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatline.errors import ConfigError

if TYPE_CHECKING:
    from flatline.diagnosis.renderers.trackers.message import Message

TAG = "flatline/diagnosis"


def check(where: str) -> None:
    """The folder must exist."""
    if not Path(where).expanduser().is_dir():
        raise ConfigError(
            f"There is no folder {Path(where).expanduser()}.\n"
            "Give the folder with the run's event files: `--to tensorboard:runs/x`."
        )


def write(where: str, message: "Message") -> str:
    """Write into a folder of events."""
    check(where)
    folder = Path(where).expanduser()
    # Without a suffix, a file begun in the same second as one of the run would take its place.
    writer = _writer()(str(folder), filename_suffix=".flatline")
    try:
        writer.add_text(TAG, message.markdown, 0)
    finally:
        writer.close()
    return f"the texts of {folder}, under {TAG}"


def _writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:  # torch has its own, where `tensorboard` is installed
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter
