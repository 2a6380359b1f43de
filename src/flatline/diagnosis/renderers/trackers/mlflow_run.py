"""MLflow: tags `flatline.*` on the run, and the page among its artifacts."""

from pathlib import Path
from typing import TYPE_CHECKING

from flatline.errors import ConfigError

if TYPE_CHECKING:
    from flatline.diagnosis.renderers.trackers.message import Message

ARTIFACT = "flatline/diagnosis.md"


def check(where: str) -> None:
    """A run must be named."""
    _split(where)


def write(where: str, message: "Message") -> str:
    """Write onto a run that exists: `URI#RUN`, the URI as MLflow takes it or a database file."""
    from mlflow.tracking import MlflowClient

    uri, run = _split(where)
    client = MlflowClient(tracking_uri=uri)
    for key, value in message.values.items():
        client.set_tag(run, f"flatline.{key}", value)
    client.log_text(run, message.markdown, ARTIFACT)
    return f"the tags of MLflow run {run}, and its artifact {ARTIFACT}"


def _split(where: str) -> tuple[str, str]:
    uri, hash_mark, run = where.rpartition("#")
    if not hash_mark or not uri or not run:
        raise ConfigError(
            "The target `mlflow:` does not say which run.\n"
            "Write the tracking URI, `#` and the run's id: `mlflow:sqlite:///mlflow.db#RUN`, "
            "`mlflow:http://127.0.0.1:5000#RUN`."
        )
    path = Path(uri).expanduser()
    return (f"sqlite:///{path.absolute()}" if path.is_file() else uri), run
