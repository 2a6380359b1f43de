"""The change to make for a validated cause: what to type into the script, or a release to take.

A diff is proposed only where it follows from the script's own text: another value of an argument,
or a method that stands over one of TRL's and whose line was named. Anything else is a line to look
at.
"""

import ast
import difflib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatline.hypotheses import find
from flatline.releases import defects_of, installed, libraries
from flatline.remedies import REMEDIES


def change_to_make(
    code: str, where: Sequence[Mapping[str, Any]], script: Path, arguments: Sequence[str]
) -> str:
    """What to change for good, and what helps until then."""
    text = script.read_text(encoding="utf-8")
    remedy = REMEDIES[code]
    own = [one for one in where if _is_in(one, script, text)]
    diff = _with_setting(text, remedy.setting) if remedy.setting else _without_override(text, own)
    parts = []
    if diff is not None:
        parts.append(f"The change to make:\n{_diff(text, diff, script)}")
    elif remedy.setting:
        parts.append(f"The change to make: `{remedy.setting}` in the trainer's arguments.")
    else:
        parts.append(_lines(code, own or where))
    if not own:
        parts += _releases(where)
    command = shlex.join(["flatline", "run", "--remedy", code, *with_arguments(script, arguments)])
    parts.append(f"Until then: `{command}`")
    return "\n".join(parts)


def with_arguments(script: Path, arguments: Sequence[str]) -> list[str]:
    """The end of a `flatline run`: none of the script's own flags may be read as flatline's."""
    return [str(script), *(["--", *arguments] if arguments else [])]


def _is_in(place: Mapping[str, Any], script: Path, text: str) -> bool:
    lines = text.splitlines()
    there = lines[place["line"] - 1].strip() if 0 < place["line"] <= len(lines) else ""
    return Path(place["file"]).name == script.name and there == place["source"].strip()


def _lines(code: str, where: Sequence[Mapping[str, Any]]) -> str:
    fix = find(code).fix
    if not where:
        return f"The change to make: {fix}"
    first = where[0]
    return f"The change to make, at {first['file']}:{first['line']} `{first['source']}`: {fix}"


def _releases(where: Sequence[Mapping[str, Any]]) -> list[str]:
    """A cause inside a library may be one that a later release fixed."""
    named = {str(place["file"]).split("/")[0] for place in where} & libraries()
    known = [
        defect
        for library in sorted(named)
        for defect in defects_of(library, installed(library) or "").values()
    ]
    return [f"{one.library} {one.mended} mends: {one.what} ({one.reference})." for one in known]


def _with_setting(text: str, setting: str) -> str | None:
    """The text with one argument of a config object changed, where the script writes it out."""
    name, _, value = setting.partition("=")
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        for keyword in call.keywords:
            if keyword.arg == name and "Config" in ast.unparse(call.func):
                return _replaced(text, keyword.value, value)
    return None


def _replaced(text: str, node: ast.expr, value: str) -> str | None:
    if node.lineno != node.end_lineno or node.end_col_offset is None:
        return None
    lines = text.splitlines(keepends=True)
    line = lines[node.lineno - 1].encode()
    lines[node.lineno - 1] = (
        line[: node.col_offset] + value.encode() + line[node.end_col_offset :]
    ).decode()
    return "".join(lines)


def _without_override(text: str, where: Sequence[Mapping[str, Any]]) -> str | None:
    """The text without the method that the first line is in, where that only stands over another:
    a method that calls the one it stands over leaves that in its place."""
    for kind in ast.walk(ast.parse(text)):
        for method in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and where and _holds(method, where[0]):
                return _without(text, kind, method) if _calls_over(method) else None
    return None


def _holds(method: ast.FunctionDef, place: Mapping[str, Any]) -> bool:
    return method.lineno <= int(place["line"]) <= int(method.end_lineno or method.lineno)


def _calls_over(method: ast.FunctionDef) -> bool:
    return f"super().{method.name}(" in ast.unparse(method)


def _without(text: str, kind: ast.AST, method: ast.FunctionDef) -> str:
    lines = text.splitlines(keepends=True)
    begin, end = method.lineno - 1, int(method.end_lineno or method.lineno)
    left = [one for one in getattr(kind, "body", []) if one is not method]
    instead = [] if left else [" " * method.col_offset + "pass\n"]
    while not left and begin and not lines[begin - 1].strip():
        begin -= 1
    return "".join([*lines[:begin], *instead, *lines[end:]])


def _diff(before: str, after: str, script: Path) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{script.name}", f"b/{script.name}", lineterm=""
    )
    return "\n".join(f"  {line}" for line in lines)
