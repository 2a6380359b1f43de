"""Which of a log's metric names fill which columns, by the table in `aliases.py`."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from flatline.trace.importers.aliases import (
    AFTER_A_NAME,
    CAVEATS,
    COLUMNS,
    FOLDERS,
    KEPT,
    STEP,
    UNITS,
    WORDS,
    Words,
)

_WITH_UNIT = re.compile(r"(?P<name>.+?)_*[(\[](?P<unit>[^()\[\]]+)[)\]]")
_POWER = re.compile(r"1e-\d\d?")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DOTTED = re.compile(r"^(eval|val|validation|dev|test|held_?out)\.")
_NAMES = frozenset(name for names in COLUMNS.values() for name in names)


class _OneOf:
    """Names of the table; a `*` in one of them stands for anything."""

    def __init__(self, names: Iterable[str]) -> None:
        names = frozenset(names)
        self._open = re.compile("|".join(_pattern(name).pattern for name in names if "*" in name))
        self._names = frozenset(name for name in names if "*" not in name)

    def __contains__(self, name: str) -> bool:
        return name in self._names or self._open.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What became of the metric names of one log."""

    aliases: dict[str, str]
    """Column -> the name that fills it."""
    unrecognised: list[str]
    """Names that no alias knows."""
    notes: list[str]
    """Choices and caveats, for people."""


def resolve(names: Iterable[str], *, leave_out: Collection[str] = ()) -> Resolution:
    """Give every column of `steps` at most one of these names, and none of those to leave out."""
    names = list(names)
    known: dict[str, list[str]] = {}
    for name in names:
        if plain(name) not in leave_out:
            known.setdefault(plain(name), []).append(name)
    aliases: dict[str, str] = {}
    notes: list[str] = []
    for column, wanted in COLUMNS.items():
        _fill(column, wanted, known, aliases, notes)
    free = {name: _words_of(name) for name in names if _is_free(name)}
    for column in [column for column in WORDS if column not in aliases]:
        left = free.keys() - aliases.values()
        said = (
            [name for name, words in free.items() if name in left and _says(words, wanted)]
            for wanted in WORDS[column]
        )
        found = next((several for several in said if several), [])
        if len(found) == 1 and plain(found[0]) not in leave_out:
            aliases[column] = found[0]
            notes.append(f"`{column}` is {found[0]!r}, by the words of its name.")
    taken = set(aliases.values())
    strange = [name for name in names if name not in taken and not is_known(name)]
    return Resolution(aliases=aliases, unrecognised=sorted(strange), notes=notes)


@lru_cache(maxsize=2**17)  # asked for every value of a log, which may have 40,000 names
def plain(name: str) -> str:
    """A name as the table writes it."""
    text = _unit(name)[0]
    exported = text.rpartition("_-_")[2].removeprefix("train/")  # a chart of W&B: run - metric
    text = exported if exported in _NAMES | KEPT.keys() else text
    while text.startswith("train/"):
        text = text.removeprefix("train/")
    bare = text.removeprefix("train_")  # a log that is no path writes `train_kl` for `train/kl`
    return bare if bare in _NAMES | KEPT.keys() and text not in _NAMES | KEPT.keys() else text


def times(name: str) -> float:
    """What turns a number under this name into one of the column's unit."""
    return _unit(name)[1]


@lru_cache(maxsize=2**17)
def _unit(name: str) -> tuple[str, float]:
    """A name without its unit in brackets, and what the unit is worth."""
    text = "_".join(name.lower().split()).replace("_/_", "/")  # a table of Unsloth in a notebook
    text = _DOTTED.sub(r"\1/", text)
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        bare, _, unit = text.rpartition("_")
        ends = bare and unit in AFTER_A_NAME
        whole = text.removeprefix("train/")
        has_it = whole in _columns() or whole in _kept()
        return (bare, UNITS[unit]) if ends and not has_it else (text, 1.0)
    if _POWER.fullmatch(found["unit"]):
        return found["name"], float(found["unit"])
    if found["unit"] in UNITS:
        return found["name"], UNITS[found["unit"]]
    return text, 1.0


@lru_cache(maxsize=2**17)
def is_known(name: str) -> bool:
    """Whether the table has the name at all, be it for a column or only for `metrics`."""
    text = plain(name)
    return text in STEP or text in _columns() or text in _kept()


def fills_nothing(name: str) -> bool:
    """Whether the table has the name, and only for `metrics`."""
    text = plain(name)
    return text in _kept() and text not in _columns()


def _is_free(name: str) -> bool:
    """Whether the words of a name may say what it is: the table says nothing of the name itself."""
    return not is_known(name) or (
        plain(name) not in _columns() and plain(name) not in _kept_for_sure()
    )


def _words_of(name: str) -> frozenset[str]:
    # What is one letter is a symbol: `H` is an entropy, and `h` are hours.
    bare = name if len(name) == 1 else plain(_HUMP.sub("_", name))
    unit = name.lower().rpartition("_")[2]
    return frozenset(re.split(r"[^A-Za-z0-9]+", bare)) | ({unit} & AFTER_A_NAME)


def _says(words: frozenset[str], wanted: Words) -> bool:
    return all(words & any_of for any_of in wanted.needed) and words <= wanted.beside.union(
        *wanted.needed
    )


def _fill(
    column: str,
    wanted: tuple[str, ...],
    known: dict[str, list[str]],
    aliases: dict[str, str],
    notes: list[str],
) -> None:
    """Take the best name for a column; what else could have filled it is reported."""
    found = [(want, names) for want in wanted if (names := _claimed(want, known))]
    if not found:
        return
    want, names = found[0]
    if "*" in want and len(names) > 1:
        # Two held-out sets: neither is "the" held-out reward.
        notes.append(f"`{column}` is left empty: {_listed(names)} could all fill it.")
        return
    aliases[column] = names[0]
    others = [name for _, claimed in found for name in claimed if name != names[0]]
    if others:
        notes.append(f"`{column}` is {names[0]!r}, not {_listed(others)}.")
    if want in CAVEATS:
        notes.append(f"`{names[0]}`: {CAVEATS[want]}.")


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _claimed(want: str, known: dict[str, list[str]]) -> list[str]:
    """The names that an alias means, out of those known by how the table writes them."""
    if "*" not in want:
        return known.get(want, [])
    return [
        name for text, names in known.items() if _pattern(want).fullmatch(text) for name in names
    ]


@cache
def _pattern(want: str) -> re.Pattern[str]:
    return re.compile(re.escape(want).replace(r"\*", ".*"))


@cache
def _columns() -> _OneOf:
    return _OneOf(_NAMES)


@cache
def _kept() -> _OneOf:
    return _OneOf(KEPT)


@cache
def _kept_for_sure() -> _OneOf:
    return _OneOf([*(KEPT.keys() - FOLDERS), *STEP])
