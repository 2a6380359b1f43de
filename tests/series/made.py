"""Made logs, and the noise that is on their columns."""

import numpy as np

from flatline.remarks import remarks_of
from flatline.remarks.main_event import main_event
from flatline.trace import Trace
from flatline.trace.importers.resolve import is_known

OURS = {
    *("reward", "kl", "entropy", "grad_norm", "learning_rate", "completion_length", "loss"),
    *("zero_std_share", "truncated_share", "clip_share", "heldout_reward", "ratio_max"),
    *("seconds", "time", "logprob_gap"),
}
RNG = np.random.default_rng(5)


def log(source="import:trl", **columns):
    """A log; `eval__score` stands for `eval/score`, None for no value."""
    named = {name.replace("__", "/"): np.asarray(values) for name, values in columns.items()}
    listed = []
    for at in range(len(next(iter(named.values())))):
        row = {name: float(v[at]) for name, v in named.items() if v[at] is not None}
        listed.append({"step": at + 1, **{n: row[n] for n in OURS & row.keys()}, "metrics": row})
    unknown = sorted(n for n in named.keys() - OURS if "/" not in n and not is_known(n))
    run = {"source": source, "unrecognised": unknown, "settings": {}}
    return Trace.from_rows(run=run, steps=listed)


def around(level, rows, by=0.02):
    return level + by * RNG.normal(size=rows)


def wobbling(level, rows=60, by=0.1):
    return level * around(1, rows, by)


def line(first, last, rows, by=0.02):
    return around(np.linspace(first, last, rows), rows, by)


def alike(rows, near, rng=RNG):
    """Noise of size 1, each row as alike to the one before."""
    noise = rng.normal(size=rows)
    for at in range(1, rows):
        noise[at] += near * noise[at - 1]
    return noise


def said(trace):
    return " ".join(remarks_of(trace))


def event_of(trace):
    """The text of the event that the log is about, if any."""
    return getattr(main_event(trace), "text", "")
