"""A new journal, from the template files beside this one. What exists is never overwritten."""

from collections.abc import Iterable
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from flatline.config import LAB, RunConfig, toml_of
from flatline.errors import ConfigError
from flatline.journal import board, frontmatter
from flatline.journal.folder import HYPOTHESES, RESULTS, SETUP, Journal, shown, write_text
from flatline.markdown import inline

_NOT_OF_THE_SETUP = ("output_dir", "run_name", "resume_from_checkpoint", "report_to", "seed")
"""Settings of one run on one machine; an experiment chooses its own."""


class Begun(NamedTuple):
    """What `init` did."""

    written: list[str]
    kept: list[str]


def begin(path: Path, config: RunConfig) -> Begun:
    """Make a journal for a setup; files that are there already stay as they are."""
    journal = Journal(path)
    try:
        (path / HYPOTHESES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot become a journal: {error.strerror}.\nGive the path of a new folder."
        ) from error
    with journal.lock():
        begun = Begun([], [])
        taken = {entry.code for entry in journal.read().entries}
        for name, text in _files(path, config):
            known = name.startswith(HYPOTHESES) and Path(name).name[:3].upper() in taken
            if known or (path / name).exists():
                begun.kept.append(name)
            elif write_text(path / name, text):
                begun.written.append(name)
        (path / RESULTS).mkdir(exist_ok=True)
        board.refresh(journal)
    return begun


def _files(path: Path, config: RunConfig) -> Iterable[tuple[str, str]]:
    yield SETUP, setup_text(config)
    values = {
        "@DIR@": shown(path),
        "@TASK@": config.task,
        "@MODEL@": inline("the lab policy" if config.model == LAB else config.model),
    }
    root = files("flatline.journal") / "template"
    for name, source in _markdown(root):
        text = source.read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(key, value)
        if name.startswith(HYPOTHESES) and config.model != LAB:
            # What a run of another model costs, nobody can say beforehand.
            text = frontmatter.changed(text, {"cost_minutes": None}, Path(name))
        yield name, text


def _markdown(folder: Traversable, above: str = "") -> Iterable[tuple[str, Traversable]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            yield from _markdown(item, f"{above}{item.name}/")
        elif item.name.endswith(".md"):
            yield above + item.name, item


def setup_text(config: RunConfig) -> str:
    """The setup under investigation, as TOML that `load_config` reads."""
    default = asdict(RunConfig())
    given = {
        name: value
        for name, value in config.to_dict().items()
        if value != default[name] and name not in _NOT_OF_THE_SETUP and name != "task"
    }
    head = "# The run under investigation. What is not set here has flatline's default.\n"
    return head + toml_of({"task": config.task, **given})
