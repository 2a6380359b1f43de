"""Pages that show why: of a run, of an experiment, of a journal.

    write_report(Path("runs/x"), Path("report.html"))     one self-contained file

`pages.py` renders templates, `charts.py` and its neighbours make figures, `*_page.py` decide what a
page says. The live pages in `web/` render the same templates.
"""

from pathlib import Path

from flatline.errors import ConfigError
from flatline.evaluate import write_atomically

__all__ = ["page_of", "write_report"]


def write_report(path: Path, output: Path) -> None:
    """Write the page of a run, an experiment or a journal as one file."""
    page = page_of(path)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, [page])
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror}.\n"
            "Give a file in a folder that you may write to: `-o report.html`."
        ) from error


def page_of(path: Path) -> str:
    """The page of what a path holds; it carries everything that it needs."""
    # Each page brings much that the others do not need.
    if (path / "plan.json").is_file():
        from flatline.report.experiment_page import experiment_page

        return experiment_page(path)
    if (path / "hypotheses").is_dir():
        from flatline.report.journal_page import journal_page

        return journal_page(path)
    from flatline.report.run_page import run_page

    return run_page(path)
