"""Pages that show why: of a run, of an experiment, of a journal.

    write_report(Path("runs/x"), Path("report.html"))     one self-contained file
    write_report(Path("runs/x"), Path("report.html"), other=Path("runs/y"))

`pages.py` renders templates, `charts.py` and its neighbours make figures, `*_page.py` decide what a
page says. The live pages in `web/` render the same templates.
"""

from pathlib import Path

from flatline.errors import ConfigError, needing
from flatline.files import write_atomically

__all__ = ["page_of", "write_report"]


def write_report(path: Path, output: Path, *, other: Path | None = None) -> None:
    """Write the page of a run, an experiment or a journal as one file; a run perhaps compared."""
    page = page_of(path, other)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, [page])
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror}.\n"
            "Give a file in a folder that you may write to: `-o report.html`."
        ) from error


def page_of(path: Path, other: Path | None = None) -> str:
    """The page of what a path holds; it carries everything that it needs."""
    kinds = [_kind(one) for one in (path, other) if one is not None]
    if other is not None and kinds != ["run", "run"]:
        raise ConfigError(
            f"{path} is read as {kinds[0]}, {other} as {kinds[1]}: only two runs can be laid over "
            "each other.\nWhat an experiment compares is on its own page.\n"
            "Give two run directories or logs: `flatline report runs/a --compare runs/b`."
        )
    # Each page brings much that the others do not need.
    with needing("A page", "pages"):
        if kinds[0] == "experiment":
            from flatline.report.experiment_page import experiment_page

            return experiment_page(path)
        if kinds[0] == "journal":
            from flatline.report.journal_page import journal_page

            return journal_page(path)
        from flatline.report.run_page import run_page

        return run_page(path, other)


def _kind(path: Path) -> str:
    if (path / "plan.json").is_file():
        return "experiment"
    return "journal" if (path / "hypotheses").is_dir() else "run"
