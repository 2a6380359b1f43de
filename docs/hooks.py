"""What the site makes from the code: the manual page of every hypothesis."""

from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Adds `hypotheses.md`, from the docstrings that `flatline explain` prints."""
    files.append(File.generated(config, "hypotheses.md", content=_manuals()))
    return files


def _manuals() -> str:
    from flatline.hypotheses import HYPOTHESES

    head = "# The hypotheses\n\nAlso in the terminal: `flatline explain H09`."
    pages = (f"## {one.id} {one.name}\n\n{_below(one.manual())}" for one in HYPOTHESES)
    return "\n\n".join([head, *pages])


def _below(manual: str) -> str:
    """Headings of a page become headings below the name of its hypothesis."""
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in manual.splitlines())
