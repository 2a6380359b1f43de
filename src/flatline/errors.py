"""Every error meant for a user.

    FlatlineError
    ├── DataError       a file, a row or a dataset spec that cannot be used
    ├── ConfigError     a flag or option that cannot be honoured
    │   └── TooFewSeeds     an experiment that could not end in a verdict
    ├── ModelError      a model, tokenizer or chat template that cannot be used
    └── TraceError      a recorded run that cannot be read or written
        └── NotRecorded     a column that this trace does not have
            └── Lacking         a capability that this trainer does not give

The command line prints these without a traceback and exits with 2. A message says what was seen
(file, line, value), why it matters and what to type. Any other exception is our bug and keeps its
traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def type_to_add(extra: str) -> str:
    """What to type where an extra is missing: not its name, which is another project's on PyPI."""
    return f'Type `pip install ".[{extra}]"` in flatline\'s checkout'


@contextmanager
def needing(what: str, extra: str = "train") -> Iterator[None]:
    """Around imports that a smaller installation cannot do: says what they were for and what to
    type."""
    try:
        yield
    except ImportError as error:
        raise not_installed(what, error, extra) from error


def not_installed(what: str, error: ImportError, extra: str = "train") -> "ConfigError":
    """A package that something needs, and that is missing or broken."""
    gone = isinstance(error, ModuleNotFoundError)
    seen = "which is not installed" if gone else f"which cannot be used as it is: {error}"
    return ConfigError(f"{what} needs {error.name or 'a package'}, {seen}.\n{type_to_add(extra)}.")


class FlatlineError(Exception):
    """Something the user can put right."""


class DataError(FlatlineError):
    """A file, a row or a dataset spec that cannot be used."""


class ConfigError(FlatlineError):
    """A flag or option that cannot be honoured."""


class TooFewSeeds(ConfigError):
    """An experiment that could not end in a verdict, whatever its runs come to."""

    def __init__(self, text: str, *, needed: int) -> None:
        super().__init__(text)
        self.needed = needed


class ModelError(FlatlineError):
    """A model, tokenizer or chat template that cannot be used."""


class TraceError(FlatlineError):
    """A recorded run that cannot be read or written."""


class NotReached(FlatlineError):
    """The time that was given is over."""


class NotRecorded(TraceError):
    """A column that this trace does not have. Diagnosis turns it into "cannot tell"."""

    def __init__(self, column: str, *, seen: str | None = None) -> None:
        super().__init__(
            seen
            or f"This trace has no `{column}`.\n"
            "An imported log has only what its source wrote.\n"
            "Record the run itself with `flatline.attach(trainer, run_dir)`."
        )
        self.column = column


class Lacking(NotRecorded):
    """A capability that this trainer does not give (`flatline.live.protocol`)."""

    def __init__(self, capability: str, how: str) -> None:
        super().__init__(capability, seen=f"This needs {capability}. {how}".rstrip())
        self.how = how
