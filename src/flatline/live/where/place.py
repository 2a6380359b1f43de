"""A place in the code that runs: plain words and numbers, no torch."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from flatline.live.where.package import in_library
from flatline.live.where.statements import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A statement that may have made a value what it is."""

    file: str
    """Relative to the working directory, or to the package that it belongs to."""
    line: int
    source: str
    """The statement's first line, as its file has it."""
    function: str
    """With its class; `<module>` outside of functions."""
    own: bool = field(default=True, compare=False)
    """Whether it is the user's, and no library's."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.source}"

    def to_json(self) -> dict[str, str | int]:
        shown = asdict(self)
        del shown["own"]
        return shown


def place_of(statement: Statement, function: str) -> Where:
    """Where a statement stands."""
    return Where(
        file=_shown(Path(statement.file)),
        line=statement.line,
        source=statement.source,
        function=function,
        own=not in_library(statement.file),
    )


def _shown(file: Path) -> str:
    """Relative to the working directory where it lies below it, else to its package."""
    if file.is_relative_to(Path.cwd()):
        return file.relative_to(Path.cwd()).as_posix()
    top = file.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return file.relative_to(top).as_posix()
