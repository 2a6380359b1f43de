"""What the code of a function refers to beside its arguments: names of its module, and of others.

Read off the code object, never run. A name that is an attribute elsewhere may be taken for one of
the module's: then something is kept that need not have been.
"""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from flatline.live.restore.belongs import is_users


def names_in(code: CodeType) -> set[str]:
    """All names that it and the code inside it look up."""
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= names_in(one)
    return found


def referred(function: FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Names of the user's modules that it refers to, each with the module's dictionary; also those
    that are not there yet."""
    names = names_in(function.__code__)
    done: set[int] = set()
    waiting = [function.__globals__]
    while waiting:
        module = waiting.pop()
        if id(module) in done:
            continue
        done.add(id(module))
        for name in names:
            if name.startswith("__"):
                continue
            yield module, name
            inner = module.get(name, sys.modules.get(name))
            if isinstance(inner, ModuleType) and is_users(inner.__name__):
                waiting.append(vars(inner))
