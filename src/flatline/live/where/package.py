"""Whose code it is: told by the package that a module belongs to, never by the folder it lies in.

TRL is TRL in site-packages, as an editable install, as a fork on `sys.path`, and as a copy inside
of another package or under another name.
"""

import functools
import json
import os
import sys
import sysconfig
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

TRL = "trl"
LIBRARIES = (TRL, "transformers", "accelerate", "peft", "datasets", "torch", "flatline")
"""What a training is built on: nobody's own, wherever it lies."""
PARTS_OF_TRL = (
    "trainer/grpo_trainer.py",
    "trainer/grpo_config.py",
    "trainer/utils.py",
    "import_utils.py",
    "data_utils.py",
)
"""What has all of them is a copy of TRL, whatever it is called."""


def library_of(module: str) -> str:
    """The package that a module belongs to, by its first name; a copy of TRL is TRL."""
    names = module.split(".")
    inside = (".".join(names[:count]) for count in range(1, len(names)))
    return TRL if any(map(_is_trl, inside)) else names[0]


def _is_trl(package: str) -> bool:
    folders = getattr(sys.modules.get(package), "__dict__", {}).get("__path__", ())
    return any(
        all(os.path.isfile(os.path.join(folder, part)) for part in PARTS_OF_TRL)
        for folder in folders
    )


def part_of_trl(module: str) -> Any:
    """A module of the TRL that is loaded, which may be a copy under another name."""
    whole = f".{module}"
    names = (one for one in list(sys.modules) if one.endswith(whole) and library_of(one) == TRL)
    return import_module(next(names, f"{TRL}{whole}"))


def package_of(file: str) -> str:
    """The same of the module that was loaded from a file."""
    return library_of(_module_of(file))


@functools.cache
def in_library(file: str) -> bool:
    """Whether it is a library's, rather than written here."""
    package = package_of(file)
    if package in LIBRARIES:
        return True
    standard = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
    if package in sys.stdlib_module_names and file.startswith(standard):
        return True  # a script may be called as one of them
    known = _distributions().get(package, ())
    return any(_has(one, package, file) and not _made_here(one) for one in known)


def _module_of(file: str) -> str:
    """Its full name; `__main__` of a script. Of a file that is no loaded module, by its folders."""
    for name, module in list(sys.modules.items()):
        held = getattr(module, "__dict__", {})
        if held.get("__file__") == file:
            spec = held.get("__spec__")  # `python -m` says here what it runs as `__main__`
            return name if spec is None else str(spec.name)
    names, folder = [Path(file).stem], Path(file).parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names)


@functools.cache
def _distributions() -> dict[str, list[metadata.Distribution]]:
    """What is installed, by the names under which it is imported."""
    return {
        package: [metadata.distribution(name) for name in dict.fromkeys(names)]
        for package, names in metadata.packages_distributions().items()
    }


def _has(one: metadata.Distribution, package: str, file: str) -> bool:
    """Whether it brought the file, and not only another one of that name."""
    places = (one.locate_file(package), one.locate_file(f"{package}.py"))
    return any(Path(file).is_relative_to(str(place)) for place in places)


def _made_here(one: metadata.Distribution) -> bool:
    """Whether it was installed from a folder of this machine, as people install their own."""
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    folder = unquote(urlparse(str(origin.get("url", ""))).path)
    return "dir_info" in origin and os.path.isdir(folder)
