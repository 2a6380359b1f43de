"""Markdown of a journal as markup. Anyone may have written it: HTML in it is shown, not obeyed."""

import re
from collections.abc import Mapping
from functools import cache
from posixpath import normpath

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from flatline.text import visible

DEEPER = 2
"""Headings go this much down: the page has its own above them."""
_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\n.*?^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_MARKER = re.compile(r"^<!-- /?flatline:[\w.-]+ -->[ \t]*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"https?://|mailto:", re.IGNORECASE)


def rendered(text: str, *, anchors: Mapping[str, str], folder: str = "") -> Markup:
    """The text as markup. Links to files in `anchors` go to their place in the page.

    `folder` is where the text lies, as its own links are relative to it. A link to any other file
    is left as text, since the page may be read without the folder; images are links, since a page
    that loads them would not be one file.
    """
    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"))
    tokens = _parser().parse(visible(_MARKER.sub("", text)))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + DEEPER, 6)}"
        if token.type == "table_open":
            token.attrSet("tabindex", "0")  # a wide one scrolls, and keys must reach it
        if token.type in ("th_open", "td_open") and "right" in str(token.attrs.pop("style", "")):
            token.attrSet("class", "number")  # a style in the markup is forbidden on live pages
        for inner in token.children or ():
            if inner.type == "link_open":
                _redirect(inner, anchors, folder)
    renderer = _parser().renderer
    return Markup(renderer.render(tokens, _parser().options, {}))


def _redirect(link: Token, anchors: Mapping[str, str], folder: str) -> None:
    target = str(link.attrs.pop("href", ""))
    if _ELSEWHERE.match(target):
        link.attrs |= {"href": target, "rel": "noopener noreferrer"}
        return
    path = normpath(f"{folder}/{target.split('#')[0]}".lstrip("/"))
    if path in anchors:
        link.attrs["href"] = f"#{anchors[path]}"


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
