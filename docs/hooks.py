"""What the site makes from the code: the manual page of every hypothesis."""

from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Ends `hypotheses.md` with the docstrings that `flatline explain` prints."""
    return f"{markdown}\n\n{_manuals()}" if page.file.src_uri == "hypotheses.md" else markdown


def _manuals() -> str:
    from flatline.hypotheses import HYPOTHESES

    pages = (f"## {one.id} {one.name}\n\n{_below(one.manual())}" for one in HYPOTHESES)
    return "\n\n".join(pages)


def _below(manual: str) -> str:
    """Headings of a page become headings below the name of its hypothesis."""
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in manual.splitlines())
