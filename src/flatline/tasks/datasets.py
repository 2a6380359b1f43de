"""Dataset specs: which rows a run reads, as one line of text.

    path,config,split[slice]          several are joined with `;`

    train.jsonl                       a local file
    data/musique,full,dev[:100]       a folder: dev.jsonl, or musique_full_v1.0_dev.jsonl
    openai/gsm8k,main,test[10%:20%]   a hub name, read with the `datasets` library
    lab,,train[50:60]                 the built-in generator; each task makes these rows itself

Config, split and slice may be left out. `dev` and `validation` are the same split. A slice counts
rows as they lie in the file, before a task drops or shuffles any, and one that does not fit is an
error: a run on fewer rows than were asked for would look like a run on all of them.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from flatline.errors import DataError

LAB = "lab"
"""The path of the built-in generators."""

_GRAMMAR = (
    "A spec is `path,config,split[slice]`, e.g. `data/musique,answerable,train[:100]`; "
    "join several with `;`."
)
_SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "dev", "valid"),
    "test": ("test",),
}
_SLICE = re.compile(r"(?P<rest>[^\[\]]*)\[(?P<start>-?\d{1,12}%?)?:(?P<stop>-?\d{1,12}%?)?\]")
_LONGEST = 2**25
"""Characters of a line. A file without line ends would otherwise fill the memory."""
_SHOWN = 60
"""How many characters of a broken line a message quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One dataset, as written on a command line."""

    path: str
    """A file, a folder, a hub name, or `lab`."""
    config: str | None = None
    """Variant of the dataset, such as `answerable` or `main`."""
    split: str | None = None
    """As written; `dev` is not yet turned into `validation`."""
    start: str | None = None
    """First row of the slice as text, such as `10` or `10%`; from the beginning where absent."""
    stop: str | None = None
    """First row after the slice as text; to the end where absent."""
    text: str
    """The spec as the user wrote it, for messages."""

    def split_or(self, default: str) -> str:
        """The split to read, by its canonical name."""
        return canonical_split(self.split or default)


class Row(NamedTuple):
    """One row and where it was found."""

    source: str
    """The file, or the name and split of a dataset that is no file."""
    line: int
    """Line of the file, or row of the dataset, counted from 1."""
    data: dict[str, Any]
    """The row itself, not validated."""

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"


def parse_specs(text: str) -> list[DatasetSpec]:
    """Every spec of a `;`-joined text."""
    return [_parse_spec(part.strip(), text) for part in text.split(";")]


def canonical_split(name: str) -> str:
    """`dev` and `valid` are `validation`; a name we do not know stays as it is."""
    for canonical, names in _SPLIT_NAMES.items():
        if name in names:
            return canonical
    return name


def slice_bounds(spec: DatasetSpec, size: int) -> tuple[int, int]:
    """First row and end of the slice in a dataset of `size` rows; an error if it does not fit."""
    start = 0 if spec.start is None else _position(spec.start, size)
    stop = size if spec.stop is None else _position(spec.stop, size)
    if 0 <= start < stop <= size:
        return start, stop
    reason = "is empty" if 0 <= stop <= start < size else "is out of range"
    advice = f"type a slice inside [0:{size}] or leave it out" if size else "use another dataset"
    raise DataError(
        f"The slice [{spec.start or ''}:{spec.stop or ''}] of `{spec.text}` {reason}: "
        f"it means rows {start} to {stop}, and there are {size} rows.\n"
        f"To go on, {advice}."
    )


def read_rows(spec: DatasetSpec, *, split: str, default_config: str | None = None) -> list[Row]:
    """The rows of a spec, sliced.

    `split` is used where the spec names none. `default_config` only helps to choose between the
    files of a folder; a hub never sees it.
    """
    wanted = spec.split_or(split)
    path = Path(os.path.expanduser(spec.path))
    if os.path.isfile(path):  # unlike Path.is_file, it survives names no file can have
        return _read_file(spec, path)
    if os.path.isdir(path):
        return _read_folder(spec, path, wanted, spec.config or default_config)
    if _looks_local(spec.path):
        raise DataError(
            f"There is no file or folder {spec.path} (in the spec `{spec.text}`).\n"
            "Give the path of a .jsonl file, a folder of them, a hub name, or `lab`."
        )
    return _read_hub(spec, wanted)


def _parse_spec(text: str, whole: str) -> DatasetSpec:
    if not text:
        raise DataError(f"An empty dataset spec in {whole!r}.\n{_GRAMMAR}")
    rest, start, stop = _split_slice(text)
    parts = [part.strip() for part in rest.split(",")]
    if len(parts) == 2 and canonical_split(parts[1]) in _SPLIT_NAMES:
        parts.insert(1, "")  # `lab,train[:9]`: no dataset calls a config by the name of a split
    if len(parts) > 3 or not parts[0]:
        seen = "no path" if not parts[0] else f"{len(parts)} parts where at most 3 are expected"
        raise DataError(f"The dataset spec `{text}` has {seen}.\n{_GRAMMAR}")
    path, config, split = (*parts, "", "")[:3]
    return DatasetSpec(
        path=path, config=config or None, split=split or None, start=start, stop=stop, text=text
    )


def _split_slice(text: str) -> tuple[str, str | None, str | None]:
    """A spec's text without its slice, and the two ends of the slice."""
    if not text.endswith("]"):
        return text, None, None
    found = _SLICE.fullmatch(text)
    if found is None:
        raise DataError(
            f"The slice at the end of `{text}` cannot be read.\n"
            "Write it as [:100], [10:20], [50:] or [10%:20%]."
        )
    return found["rest"], found["start"], found["stop"]


def _position(text: str, size: int) -> int:
    """The row that one end of a slice means; a percentage is rounded to the nearest row."""
    number = int(text.rstrip("%"))
    if text.endswith("%"):
        number = round(size * number / 100)
    return number + size if text.startswith("-") else number


def _looks_local(path: str) -> bool:
    """Whether a path that is not there was meant as a file; asking a hub takes half a minute.

    A hub name has at most one slash, and its owner is not a folder here.
    """
    if path.startswith((".", "/", "~")) or path.endswith((".jsonl", ".json")):
        return True
    return path.count("/") > 1 or ("/" in path and os.path.isdir(path.split("/")[0]))


def _read_file(spec: DatasetSpec, path: Path) -> list[Row]:
    """The sliced rows of a JSONL file. Lines outside the slice are counted, not parsed."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = list(_lines(path, file))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).\n"
            "Give a JSONL file: one JSON object a line. Unpack it first if it is compressed."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.\nCheck its rights.") from error
    if not lines:
        raise DataError(f"{path} has no rows.\nDownload it again, or give another file.")
    start, stop = slice_bounds(spec, len(lines))
    last = lines[-1][0]
    return [
        Row(str(path), number, _parse_line(path, number, line, is_last=number == last))
        for number, line in lines[start:stop]
    ]


def _lines(path: Path, file: TextIO) -> Iterator[tuple[int, str]]:
    """Numbered lines that hold something."""
    number = 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        if len(line) > _LONGEST:
            raise DataError(
                f"{path}:{number} is longer than {_LONGEST:,} characters, which no problem is.\n"
                "Give a JSONL file: one JSON object a line."
            )
        if line.strip():
            yield number, line


def _parse_line(path: Path, number: int, line: str, *, is_last: bool) -> dict[str, Any]:
    text = line.strip()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "too long or too deep"
        cut = is_last and not text.endswith("}")
        raise DataError(
            f"{path}:{number} is not valid JSON ({reason}); it ends with {text[-_SHOWN:]!r}.\n"
            + ("The file looks cut off: download it again" if cut else "Fix the line")
            + ", or delete this line."
        ) from error
    if not isinstance(data, dict):
        raise DataError(
            f"{path}:{number} is a JSON {type(data).__name__}, not an object: {text[:_SHOWN]!r}.\n"
            "Every line must hold one JSON object; convert the file to JSONL."
        )
    return data


def _read_folder(spec: DatasetSpec, folder: Path, split: str, config: str | None) -> list[Row]:
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return _read_saved(spec, folder, split)
    files = sorted(file for file in folder.glob("*.jsonl") if file.is_file())
    if not files and next(folder.rglob("*.parquet"), None) is not None:
        return _read_hub(spec, split)
    return _read_file(spec, _choose_file(spec, folder, files, split, config))


def _choose_file(
    spec: DatasetSpec, folder: Path, files: Sequence[Path], split: str, config: str | None
) -> Path:
    """The file of a folder that holds the split, by its name.

    A lone file is taken whatever its name, unless the name says that it is another split: training
    on the test set because it was the only file there must not happen silently.
    """
    names = _SPLIT_NAMES.get(split, (split,))
    found = [file for file in files if file.stem in names]
    found = found or [file for file in files if _name_parts(file)[-1] in names]
    if len(found) > 1 and config:
        found = [file for file in found if _names_config(file, config)] or found
    if not found and len(files) == 1 and not _names_a_split(files[0]):
        found = list(files)
    if len(found) == 1:
        return found[0]
    listing = ", ".join(file.name for file in found or files) or "no .jsonl file"
    problem = "more than one file fits" if found else "no file fits"
    raise DataError(
        f"In {folder}, {problem} the split `{split}` of `{spec.text}`; seen: {listing}.\n"
        f"Name the file itself, e.g. `{folder / (names[0] + '.jsonl')}`, or give a config."
    )


def _name_parts(file: Path) -> list[str]:
    return re.split(r"[_-]", file.stem)


def _names_a_split(file: Path) -> bool:
    return canonical_split(_name_parts(file)[-1]) in _SPLIT_NAMES


def _names_config(file: Path, config: str) -> bool:
    """Whether a name such as `musique_ans_v1.0_dev` is about the config `answerable`."""
    return any(len(part) >= 3 and config.startswith(part) for part in _name_parts(file))


def _read_saved(spec: DatasetSpec, folder: Path, split: str) -> list[Row]:
    """A folder written by `save_to_disk` of the `datasets` library."""
    datasets = _import_datasets(spec)
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises many kinds; all mean that it cannot be read
        raise _unreadable(spec, f"load_from_disk({str(folder)!r})", error) from error
    if isinstance(loaded, dict):
        names = [name for name in loaded if canonical_split(name) == split]
        if not names:
            raise DataError(
                f"{folder} has no split `{split}` (of `{spec.text}`), only {', '.join(loaded)}.\n"
                "Name one of them in the spec."
            )
        loaded = loaded[names[0]]
    return _sliced(spec, f"{folder}[{split}]", loaded)


def _read_hub(spec: DatasetSpec, split: str) -> list[Row]:
    datasets = _import_datasets(spec)
    # A hub calls the split either way, so the name as written goes first.
    names = dict.fromkeys([spec.split or split, *_SPLIT_NAMES.get(split, ())])
    failure: Exception | None = None
    for name in names:
        try:
            loaded = datasets.load_dataset(spec.path, spec.config, split=name)
        except Exception as error:  # the library raises many kinds; all mean that it cannot be read
            failure = failure or error
            if "split" not in str(error).lower():
                break  # another split name would fail the same way, after another wait
        else:
            return _sliced(spec, f"{spec.path}[{name}]", loaded)
    call = f"load_dataset({spec.path!r}, {spec.config!r}, split={next(iter(names))!r})"
    assert failure is not None
    raise _unreadable(spec, call, failure) from failure


def _import_datasets(spec: DatasetSpec) -> Any:
    try:
        import datasets  # heavy, and local files do not need it
    except ImportError as error:
        raise DataError(
            f"`{spec.text}` is no local .jsonl file, and reading it needs the `datasets` library.\n"
            "Install it with `pip install datasets`, or give a local .jsonl file."
        ) from error
    return datasets


def _unreadable(spec: DatasetSpec, call: str, error: Exception) -> DataError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(
        f"`{spec.text}` is no local file, and datasets.{call} failed: {reason[:300]}\n"
        "Check the name, config, split and network. A local .jsonl file or folder works offline: "
        "give its path instead."
    )


def _sliced(spec: DatasetSpec, source: str, rows: Any) -> list[Row]:
    start, stop = slice_bounds(spec, len(rows))
    chosen: Iterable[Any] = (rows[index] for index in range(start, stop))
    return [Row(source, number, dict(data)) for number, data in enumerate(chosen, start + 1)]
