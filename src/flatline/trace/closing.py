"""What writes a trace until it is closed."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from flatline.trace.writer import Sink


class Closing:
    """Also a context manager; a block that ends with an error leaves the trace as a crash would."""

    _sink: "Sink"

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
        if error is not None:
            self._sink.died(error)
        self.close(clean=kind is None)
