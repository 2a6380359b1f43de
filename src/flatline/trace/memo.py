"""What several hypotheses ask of one trace is worked out once."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from flatline.trace.reader import Trace

Answer = TypeVar("Answer")


def once(question: Callable[[Trace], Answer]) -> Callable[[Trace], Answer]:
    """Keeps the answer as long as the trace lives; an error is raised again each time."""
    known: WeakKeyDictionary[Trace, Answer] = WeakKeyDictionary()

    @wraps(question)
    def asked(trace: Trace) -> Answer:
        if trace not in known:
            known[trace] = question(trace)
        return known[trace]

    return asked
