"""Whether the KL of a log is that of a token or that of a whole answer: names seldom say."""

import numpy as np

from flatline.hypotheses.logs import imported
from flatline.hypotheses.trend import trend_of
from flatline.trace import Trace

BROKEN = 1.0
"""KL per token of a policy that has left. Healthy runs stay below 0.3; docs/hypotheses.md."""


def of_answers(trace: Trace) -> bool:
    """Whether it is of answers: taken for that of a token, the policy would be lost, and yet its
    reward rises; shared by the tokens of an answer, it is near."""
    if not imported(trace) or "kl" not in trace.steps or "completion_length" not in trace.steps:
        return False
    trend = trend_of(trace)
    if trend is not None and not trend.rises:
        return False
    whole, each = trace.steps["kl"], _shared(trace)
    late = np.flatnonzero(np.isfinite(each))
    late = late[-max(len(late) // 3, 1) :]
    return bool(len(late)) and bool(np.median(whole[late]) > BROKEN > np.median(each[late]))


def kl_per_token(trace: Trace) -> np.ndarray:
    """The KL of each step, per token."""
    return _shared(trace) if of_answers(trace) else trace.steps["kl"]


def _shared(trace: Trace) -> np.ndarray:
    length = trace.steps["completion_length"]
    return np.asarray(trace.steps["kl"] / np.where(length > 0, length, np.nan))
