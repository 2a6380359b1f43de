"""How often flatline cries wolf: alarms on healthy runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.plan import Kind
from bench.results import Look, Outcome
from bench.shares import Answers, Ways, asked
from flatline.bench.shares import exact_share

HEALTHY = (Kind.HELD_OUT, Kind.CALIBRATION, Kind.REFERENCE)


def healthy_rows(outcomes: Sequence[Outcome], ways: Ways) -> Iterator[dict[str, Any]]:
    """Each split as a whole, and without the runs that did not learn and may not be healthy."""
    columns: Ways = {**ways, "any": _all_looks}
    for kind in HEALTHY:
        # A run that broke down was not healthy, and its silence proves nothing.
        every = [one for one in outcomes if one.cell.kind is kind and not one.failure]
        for words, runs in (("all", every), ("that learnt", [one for one in every if one.learnt])):
            if runs:
                shares = {name: alarmed(runs, looks) for name, looks in columns.items()}
                yield {"split": kind.value, "runs": words, "by_look": shares}


def alarmed(runs: Sequence[Outcome], looks: Answers) -> dict[str, Any]:
    """How many of some runs set off an alarm in one of the looks, of those that have them.

    A look that broke down asked nothing, and its silence is no silence: such a run is left out, and
    counted apart, unless another of its looks gave an alarm.
    """
    told = asked(runs, looks)
    loud = sum(any(x.alarms for x in looks(one)) for one in told)
    unasked = sum(_unasked(looks(one)) for one in told)
    return {**exact_share(loud, len(told) - unasked), "unasked": unasked}


def _unasked(looks: Sequence[Look]) -> bool:
    return not any(x.alarms for x in looks) and not all(x.asked for x in looks)


def _all_looks(one: Outcome) -> list[Look]:
    """With the last diagnosis, even where the trace could not be read and there is none."""
    return [] if one.untaken else [*one.looks.values(), *one.end]


def false_alarms(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every alarm on a healthy run, with its words."""
    found = []
    for one in outcomes:
        if one.cell.kind in HEALTHY:
            for name, look in one.looks.items():
                for code, text in zip(look.alarms, look.texts, strict=False):
                    found.append(
                        {
                            "cell": one.cell.name,
                            "learnt": one.learnt,
                            "look": name,
                            "hypothesis": code,
                            "text": text,
                        }
                    )
    return found
