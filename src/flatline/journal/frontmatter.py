"""YAML front matter: read safely, and changed value by value so that all other bytes survive.

A value is replaced where it stands; comments, order, quotes and unknown keys stay as they are. What
was changed is read back before it is kept.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flatline.errors import ConfigError

BLOCK = re.compile(
    r"\A(\ufeff?---[ \t]*\r?\n)(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHORT = 4_000
"""Characters that the fast loader gets; on nesting without end it would crash, the other raises."""
_LARGEST = 64_000
"""Characters of a front matter: more is none, and the slow loader takes seconds for it."""
_FIRST = 2
"""Line of the file on which the YAML begins."""


def read(text: str, file: Path) -> dict[str, Any]:
    """The keys and values at the top of a file."""
    block = _block(text, file)
    if len(block[2]) > _LARGEST:
        raise ConfigError(
            f"{file}:{_FIRST}: the front matter has {len(block[2]):,} characters; the limit is "
            f"{_LARGEST:,}.\nflatline reads status and priority from there, a few lines.\n"
            "Close it with a line `---` where the values end."
        )
    if "&" in block[2] or "*" in block[2]:
        _refuse_references(block[2], file)
    try:
        loader = _FAST if len(block[2]) < _SHORT else yaml.SafeLoader
        values = yaml.load(block[2], Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _not_yaml(error, file) from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(
            f"{file}:{_FIRST}: the front matter is not a list of `name: value` lines.\n"
            "flatline reads status and priority from there.\n"
            "Begin it with `code: H03` and write one value a line."
        )
    _refuse_repeated(block[2], file)
    return values


def line_of(text: str, key: str) -> int:
    """The line of the file on which a key stands; that of its first line where it does not."""
    block = BLOCK.match(text)
    found = re.search(rf"^{re.escape(key)}[ \t]*:", block[2], re.MULTILINE) if block else None
    return _FIRST + (block[2].count("\n", 0, found.start()) if block and found else 0)


def changed(text: str, changes: Mapping[str, Any], file: Path) -> str:
    """The text with other values; lists get the items that they do not have yet."""
    wanted = dict(read(text, file))
    try:
        for key, value in changes.items():
            old = wanted.get(key)
            if isinstance(value, list):
                value = [*(old or []), *(one for one in value if one not in (old or []))]
            if key not in wanted or old != value:
                wanted[key] = value
                text = _with_value(text, key, value, file)
        same = read(text, file) == wanted
    except (ConfigError, yaml.YAMLError, RecursionError):
        same = False
    if not same:
        raise ConfigError(
            f"{file}: {', '.join(changes)} cannot be changed in this front matter without touching "
            "the rest of it.\nWrite one `name: value` a line, lists as `[A, B]`.\n"
            f"Meant: {', '.join(f'{key}: {_yaml(wanted.get(key))}' for key in changes)}."
        )
    return text


def _block(text: str, file: Path) -> re.Match[str]:
    block = BLOCK.match(text)
    if block is None:
        seen = "is never closed" if text.lstrip("\ufeff").startswith("---") else "is missing"
        raise ConfigError(
            f"{file}:1: the front matter {seen}.\n"
            "flatline reads code, title, priority and status from it.\n"
            "Begin the file with a line `---`, `name: value` lines, and another line `---`."
        )
    return block


def _with_value(text: str, key: str, value: Any, file: Path) -> str:
    block = _block(text, file)
    start = block.start(2)
    top = yaml.compose(block[2], Loader=yaml.SafeLoader)
    pairs = top.value if isinstance(top, yaml.MappingNode) else []
    node = next((v for k, v in pairs if k.value == key), None)
    if node is None:
        end = "\r\n" if "\r\n" in block[0] else "\n"
        return text[: block.end(2)] + f"{key}: {_yaml(value)}{end}" + text[block.end(2) :]
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and isinstance(value, list):
        return _with_items(text, start, node, value[len(node.value) :])
    first, last = start + node.start_mark.index, start + node.end_mark.index
    space = " " if first == last and not text[first - 1].isspace() else ""
    return text[:first] + space + _yaml(value) + text[last:]


def _with_items(text: str, start: int, node: yaml.SequenceNode, items: list[Any]) -> str:
    """A list with one item a line gets further lines after its last one."""
    last = node.value[-1]
    # Whatever follows the item on its line, such as a comment, stays there.
    stop = re.compile(r"\r?\n|\Z").search(text, start + last.end_mark.index)
    assert stop is not None
    lines = "".join(f"\n{' ' * node.start_mark.column}- {_yaml(item)}" for item in items)
    return text[: stop.start()] + lines.replace("\n", stop[0] or "\n") + text[stop.start() :]


def quoted(text: str) -> str:
    """Text in double quotes; no tag, since not every reader of Markdown knows front matter."""
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")


def _yaml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, list):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z][\w-]*", value) and yaml.safe_load(value) == value
        return value if plain else quoted(value)
    return "null" if value is None else str(value)


def _not_yaml(error: Exception, file: Path) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = _FIRST + (mark.line if mark else 0)
    said = getattr(error, "problem", None) or str(error).splitlines()[0]
    return ConfigError(
        f"{file}:{line}: the front matter is not valid YAML: {said}.\n"
        "Without it neither status nor priority of this hypothesis is known.\n"
        "Write one `name: value` a line; put a value with a colon or a quote into double quotes."
    )


def _refuse_references(block: str, file: Path) -> None:
    """A few lines of references can stand for a list of any length."""
    try:
        tokens = list(yaml.scan(block, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise _not_yaml(error, file) from error
    for token in tokens:
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
            raise ConfigError(
                f"{file}:{_FIRST + token.start_mark.line}: the front matter uses a YAML reference "
                f"(`{'&' if isinstance(token, yaml.AnchorToken) else '*'}{token.value}`).\n"
                "Values here are plain words, numbers and lists.\nWrite the value itself."
            )


def _refuse_repeated(block: str, file: Path) -> None:
    """YAML would take the last and say nothing."""
    seen: set[str] = set()
    for number, line in enumerate(block.splitlines(), start=_FIRST):
        key = re.match(r"([A-Za-z_]\w*)[ \t]*:", line)
        if key and key[1] in seen:
            raise ConfigError(
                f"{file}:{number}: `{key[1]}` is in the front matter twice.\n"
                "Only one of the two can be meant.\nDelete the other line."
            )
        if key:
            seen.add(key[1])
