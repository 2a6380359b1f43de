"""What writes a trace until it is closed."""

from types import TracebackType
from typing import Self


class Closing:
    """Also a context manager; a block that ends with an error leaves the trace as a crash would."""

    def close(self, *, clean: bool = True) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(clean=kind is None)
