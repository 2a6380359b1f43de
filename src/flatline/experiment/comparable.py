"""Runs that may be compared: recorded apart, with the outcome, on the same problems."""

from collections.abc import Iterable
from typing import NamedTuple

from flatline.errors import ConfigError
from flatline.experiment.outcome import OUTCOME_FILE, Outcome
from flatline.experiment.runs import Job


class Ended(NamedTuple):
    """A run and what it came to."""

    job: Job
    outcome: Outcome

    @property
    def label(self) -> str:
        return f"{self.job.arm!r} on seed {self.job.seed}"


def refuse_incomparable(one: Ended, others: Iterable[Ended], measured: str) -> None:
    """Raise where a run cannot be held against the others by the outcome that is measured."""
    listed = list(others)
    _refuse_shared_trace(one, listed)
    _refuse_missing_outcome(one, measured)
    _refuse_other_problems(one, listed)


def _refuse_shared_trace(one: Ended, others: list[Ended]) -> None:
    trace = (one.job.path / one.outcome.trace).resolve()
    for other in others:
        there = (other.job.path / other.outcome.trace).resolve()
        if there != trace or other.job.path == one.job.path:
            continue
        for spoilt in (one, other):  # neither can be trusted, so both are to be made again
            (spoilt.job.path / OUTCOME_FILE).unlink(missing_ok=True)
        raise ConfigError(
            f"{one.label} and {other.label} were recorded into the same folder, {trace}.\n"
            "One has overwritten the other.\n"
            "Let the command record into {run_dir}, which is another folder for every run."
        )


def _refuse_missing_outcome(one: Ended, measured: str) -> None:
    if one.outcome.measured(measured) is not None:
        return
    known = ", ".join(sorted(one.outcome.outcomes)) or "nothing that could be compared"
    raise ConfigError(
        f"The outcome is {measured}, which {one.label} does not record; it records: {known}.\n"
        "A held-out reward needs an evaluation at the start and one at the end, of the same "
        "problems.\n"
        "Take one of these as `--outcome` in an experiment of another name; or record it, move "
        f"{one.job.folder} away and run again."
    )


def _refuse_other_problems(one: Ended, others: list[Ended]) -> None:
    for other in others:
        digests = {one.outcome.problems_digest, other.outcome.problems_digest}
        if None not in digests and len(digests) > 1:
            raise ConfigError(
                f"{one.label} and {other.label} were evaluated on different held-out problems.\n"
                "A difference between them could be one between the problems.\n"
                "Give all arms the same --eval-datasets and --eval-limit."
            )
