"""trackio: the page as a report of the run, and an alert where something is wrong.

`TRACKIO_SPACE_ID` and `TRACKIO_DIR` decide where trackio keeps its runs, as they do in training.
"""

from typing import TYPE_CHECKING

from flatline.errors import ConfigError

if TYPE_CHECKING:
    from flatline.diagnosis.renderers.trackers.message import Message


def check(where: str) -> None:
    """A run must be named."""
    _split(where)


def write(where: str, message: "Message") -> str:
    """Write onto a run that exists: `PROJECT/RUN`."""
    import trackio

    project, run = _split(where)
    quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    trackio.init(project=project, name=run, resume="must", **quiet)
    try:
        trackio.log({"flatline/diagnosis": trackio.Markdown(message.markdown)})
        if message.alert:
            level = trackio.AlertLevel.ERROR if message.fault else trackio.AlertLevel.WARN
            trackio.alert(title=message.title, text=message.alert, level=level)
    finally:
        trackio.finish()
    return f"the reports of trackio run {project}/{run}"


def _split(where: str) -> tuple[str, str]:
    project, slash, run = where.partition("/")
    if not slash or not project or not run:
        raise ConfigError(
            f"`trackio:{where}` does not say which run.\n"
            "Write the project and the run's name: `--to trackio:PROJECT/RUN`."
        )
    return project, run
