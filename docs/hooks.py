"""What the site makes from code and kept results when it is built."""

import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[1])


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Ends a page with what `tests/site.py` makes for it."""
    if ROOT not in sys.path:  # mkdocs is a console script: it does not look there
        sys.path.insert(0, ROOT)
    from tests.site import MADE

    make = MADE.get(page.file.src_uri)
    return f"{markdown}\n\n{make()}\n" if make else markdown
