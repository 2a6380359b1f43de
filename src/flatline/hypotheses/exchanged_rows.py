"""Rows that are trained in the place of others: whole, as they were sampled.

Rows that a trainer sorts together with their advantages are found again by the recorder. What is
left are rows whose ids went elsewhere than the rest of what belongs to them.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.groups import standardised, within_correlation
from flatline.hypotheses.identity import steps_that_differ
from flatline.hypotheses.logprobs import prompts_of_rows
from flatline.trace import Trace
from flatline.trace.memo import once
from flatline.trace.tokens import Tokens

NEARLY_ALL = 0.9
"""Share of the rollouts with other ids than were sampled whose ids were sampled for another rollout
of the step. Healthy: none has other ids."""
FEWEST = 4
"""Rollouts that must show it."""
Key = tuple[int, bytes, bytes]
"""A step, a prompt and a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Rollouts that are trained with the ids of others, by their rows in `trace.rollouts`."""

    looked_at: int
    """Rollouts that were compared."""
    row: np.ndarray
    """In whose place, and with whose reward and advantage."""
    source: np.ndarray
    """Whose prompt and completion."""


@once
def exchanged_rows(trace: Trace) -> Exchanged | None:
    """The rollouts whose ids changed places while their advantages stayed; None where there are
    none, or where other ids than were sampled are trained."""
    if "as_sampled" not in trace.rollouts or not (trace.rollouts["as_sampled"] == 0).any():
        return None
    try:
        found = _moved(trace)
    except NotRecorded:
        return None
    return found if found is not None and _advantages_stay(trace, found) else None


def _moved(trace: Trace) -> Exchanged | None:
    tokens = trace.tokens(steps_that_differ(trace))
    trained = _keys(trace, tokens)
    sampled = _as_sampled(trained, tokens)
    moved = [at for at, key in enumerate(trained) if sampled[at] != key]
    both = Counter(trained[at] for at in moved) & Counter(sampled[at] for at in moved)
    if len(moved) < FEWEST or both.total() < NEARLY_ALL * len(moved):
        return None
    of = {key: at for at, key in enumerate(sampled)}
    pairs = np.array([(at, of[trained[at]]) for at in moved if trained[at] in of])
    rows = tokens.rollout_rows
    return Exchanged(looked_at=len(rows), row=rows[pairs[:, 0]], source=rows[pairs[:, 1]])


def _keys(trace: Trace, tokens: Tokens) -> list[Key]:
    """What is trained in the place of each rollout."""
    prompts = prompts_of_rows(tokens)
    if prompts is None:
        raise NotRecorded("tokens.prompt_ids")
    lengths = np.bincount(tokens.row, minlength=len(tokens.rollout_rows))
    completions = np.split(tokens.ids, np.cumsum(lengths)[:-1])
    steps = trace.rollouts["step"][tokens.rollout_rows].astype(int).tolist()
    return [
        (step, prompt.tobytes(), completion.tobytes())
        for step, prompt, completion in zip(steps, prompts, completions, strict=True)
    ]


def _as_sampled(trained: list[Key], tokens: Tokens) -> list[Key]:
    """What was sampled for each rollout."""
    found = list(trained)
    for one in tokens.divergences:
        step, prompt, completion = found[one.row]
        ids = one.sampled.tobytes()
        found[one.row] = (step, ids, completion) if one.in_prompt else (step, prompt, ids)
    return found


def _advantages_stay(trace: Trace, found: Exchanged) -> bool:
    """Whether advantages follow the rewards of their own place, and not those of the ids."""
    index = trace.groups().index
    reward = standardised(trace.rollouts["reward"], index)
    advantage, group = trace.rollouts["advantage"][found.row], index[found.row]
    stayed, went = (
        within_correlation(reward[rows], advantage, group) for rows in (found.row, found.source)
    )
    return bool(stayed.n and stayed.value > max(went.value if went.n else 0.0, 0.0))
