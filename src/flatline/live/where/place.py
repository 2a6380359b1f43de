"""A place in the code that runs: plain words and numbers, no torch."""

from dataclasses import asdict, dataclass


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

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}: {self.source}"

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)
