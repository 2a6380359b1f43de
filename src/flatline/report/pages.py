"""Templates, and how text gets into them.

Everything that a page shows may have been written by a model. So templates escape by themselves,
control characters and direction marks become visible wherever a text is put in, and data for the
charts travels in JSON blocks that no markup can end. No page has a script inside its markup: the
live pages forbid it.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from flatline.text import shortened, visible

Asset = Callable[[str], Markup]
"""Name of an asset -> the markup that brings it into a page."""

LONGEST = 400
"""Characters of an example or a remark; models write without end."""


def environment(asset: Asset | None = None) -> Environment:
    """Templates of this package; without `asset` a page carries its assets inside."""
    made = Environment(
        loader=PackageLoader("flatline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.globals["asset"] = asset or inline_asset
    made.globals["data_block"] = data_block
    made.filters["brief"] = partial(shortened, limit=LONGEST)
    made.filters["coded"] = coded
    made.filters["number"] = number
    made.filters["signed"] = lambda value: number(value, signed=True)
    return made


def render(template: str, context: Mapping[str, Any]) -> str:
    """A page that needs nothing but itself."""
    return standalone().get_template(template).render(context)


def asset_text(name: str) -> str:
    """The content of an asset."""
    return (files("flatline.report") / "assets" / name).read_text(encoding="utf-8")


def inline_asset(name: str) -> Markup:
    """An asset inside the page."""
    tag = "style" if name.endswith(".css") else "script"
    text = asset_text(name)
    if f"</{tag}" in text.lower():
        raise ValueError(f"{name} would end its own <{tag}> element")
    return Markup(f"<{tag}>{text}</{tag}>")


def data_block(name: str, value: Any) -> Markup:
    """Data for a script of the page: `JSON.parse(document.getElementById(name).textContent)`."""
    text = json.dumps(_without_nan(value), separators=(",", ":"), ensure_ascii=True)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(f'<script type="application/json" id="{name}">{text}</script>')


def coded(text: str) -> Markup:
    """Text with what comes between backticks set as code, as messages of flatline write it."""
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:  # one backtick too many: it may belong to what a model wrote
        return escape(visible(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else escape(part)
        for at, part in enumerate(parts)
    )


def number(value: float | None, *, signed: bool = False) -> str:
    """A number for people: three or four digits that matter."""
    if value is None or not math.isfinite(value):
        return "?"
    plus = "+" if signed else ""
    if value == 0 or 0.001 <= abs(value) < 100:
        return f"{value:{plus}.3f}"
    if 100 <= abs(value) < 1e6:
        return f"{value:{plus},.0f}"
    return f"{value:{plus}.2g}"


@cache
def standalone() -> Environment:
    """Templates of pages that need nothing but themselves."""
    return environment()


def _shown(value: Any) -> Any:
    """What an expression of a template becomes before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
