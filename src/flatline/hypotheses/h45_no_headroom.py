"""There is nothing to select: no rollout of a prompt is right, or all are, from the start.

## What goes wrong
GRPO makes likelier what some rollouts of a prompt already do. Where the starting policy never
solves a problem (a wrong base model, a task out of reach), there is nothing to make likelier; where
it always does, nothing to gain. No setting of the trainer changes that.

## Sign
Over the first 64 groups: how many hold a right rollout, as the run's own part for right says, or
the marked answer if it is read here. Suspected if the reward does not rise, and

- that share is certainly below 0.1 (the floor) and the held-out reward does not say that the policy
  can do it; or
- certainly more than 0.9 of the rollouts are right (the ceiling).

If the part is a degree, such as a share of tests, the floor asks for anything above 0, and the
ceiling for the most there is. If rollouts that no limit cut off are never right either, a limit
does not explain it. A best-of-group that is hardly ahead of a single try (0.1) is noted.

## Probe
The same, on one batch. If that leaves it open, 64 training problems are sampled once each, and
the share that is solved has the same thresholds; only 32 if these rule it out. What a tool that
cannot miss would add: `flatline checkup --tools`.

## Experiment
A planted fault against none; matched seeds, outcome is the held-out reward. A retriever in use
against the golden one, where the task has retrievers.

## Fix
Problems that the starting policy solves 10 to 90 % of the time; a supervised warm start; another
base model; a better tool.

## Not to be confused with
H32 zero-variance-groups: rewards are equal although some answers are right and others wrong. H39
reward-parser: right answers are given and not read. H04 context-truncation and H42 turn-budget:
episodes cannot be finished. H08 evaluation-mismatch: the policy can do it in evaluation.

## References
DAPO (dynamic sampling); "does RL go beyond the base model" (pass@k studies).
Thresholds: in 26 healthy lab runs 83 to 100 % of the first groups hold a right rollout, and at most
78 % of the rollouts are right; 0 of 26 alarm (interval 0 to 13 %).
"""

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.answers import ENDED, judge
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.drift import first_rows
from flatline.hypotheses.groups import EQUAL, reward_rises
from flatline.hypotheses.right import needed_part
from flatline.stats import UNKNOWN, Estimate, cluster_mean
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

FLOOR = 0.1
"""Share of groups that hold a right rollout. Healthy: 0.83 and more."""
CEILING = 0.9
"""Share of right rollouts. Healthy: up to 0.78 at the start."""
AHEAD = 0.1
"""What the best of a group must be ahead of a single try."""
BEGINNING = 64
"""Groups that show what the policy can do before it is trained."""
PROBLEMS = 64
"""Training problems that the probe plays where the batch leaves it open."""
ENOUGH = 32
"""Those that are played first. They can rule it out; an alarm takes all."""
SURE = 10.0
"""Severity where rollouts that ended by themselves show it too."""
ELSEWHERE = 0.1
"""Held-out reward above the training reward that says the policy can do it."""


class NoHeadroom(Hypothesis):
    id = "H45"
    name = "no-headroom"
    headline = "Your problems are all too hard or all too easy for this model."
    explains = ("H32", "H41")
    meaning = "There is no difference between rollouts that training could use."
    fix = "Take problems that are solved 10 % to 90 % of the time, or another starting policy."
    mechanism = "No group holds a right rollout, or all do; in the other arm they are mixed."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is there something to select, at the start?"""
        paid, rows = _paid_for_answer(trace), first_rows(trace, BEGINNING)
        right = _or_read_as_right(trace, (paid > 0) * 1.0)
        fully = (paid > 0) * (paid > paid.max(initial=0.0) - EQUAL) * 1.0
        single, solved = _shares(trace, fully, rows)[0], _shares(trace, right, rows)[1]
        by_degrees = bool(np.any((paid > 0) & (fully == 0)))
        text = (
            f"At the start {single.value:.0%} of the rollouts are right, and {solved.value:.0%} of "
            f"{solved.n} groups hold one that is right{' to a degree' if by_degrees else ''}."
        )
        floor = solved.high < FLOOR and not _can_elsewhere(trace)
        if (floor or single.low > CEILING) and not reward_rises(trace):
            whole = _shares(trace, right, rows[_ended(trace)[rows]])[1]
            return self._stuck(text, solved if floor else single, proven=whole.high < FLOOR)
        if solved.low < FLOOR or single.high > CEILING:
            return self.too_little(f"{text} More prompts are needed.")
        little = solved.value - single.value < AHEAD
        return self.found(Level.NOTE if little else Level.OK, text, measured=solved)

    def probe(self, subject: "Subject") -> Finding:
        """Where the batch leaves it open: more problems, one try each."""
        seen = self.sign(subject.trace)
        if seen.level is not Level.UNKNOWN or not subject.ours:
            return seen
        solved = _share_solved(subject)
        text = f"{solved.value:.0%} of {solved.n} training problems are solved at the first try."
        if solved.high < FLOOR or solved.low > CEILING:
            return self._stuck(text, solved, proven=True)
        if not _is_mixed(solved):
            return self.too_little(f"{text} More training problems are needed.")
        return self.found(Level.OK, text, measured=solved)

    def suspected(self, config: RunConfig) -> Setting | None:
        """A retriever that may miss against one that cannot."""
        if config.task != "musique" or config.retriever == "golden":
            return None
        return Setting(
            "retriever",
            "golden",
            control=f"retriever {config.retriever or 'bm25'}",
            treated="golden retriever",
        )

    def _stuck(self, text: str, measured: Estimate, *, proven: bool) -> Finding:
        return self.found(
            Level.SUSPECT,
            text,
            measured=measured,
            expected=f"above {FLOOR:.0%} of the groups, below {CEILING:.0%} of the rollouts",
            # Whole rollouts of the untrained policy that are never right: what else is wrong with
            # them (cut off, broken calls) is what such a policy does.
            severity=SURE if proven else 1.0,
            proven=proven,
        )


def _shares(trace: Trace, right: np.ndarray, rows: np.ndarray) -> tuple[Estimate, Estimate]:
    """Share of right rollouts, and of groups that hold one, among some rollouts."""
    if not len(rows):
        return UNKNOWN, UNKNOWN
    group = np.unique(trace.groups().index[rows], return_inverse=True)[1]
    best = np.bincount(group, right[rows]) > 0
    return cluster_mean(right[rows], group), cluster_mean(best, np.arange(len(best)))


def _ended(trace: Trace) -> np.ndarray:
    """Rollouts that no limit cut off; all where that is not known."""
    if "finish" not in trace.rollouts:
        return np.ones(len(trace.rollouts), dtype=bool)
    return np.array([end in ENDED for end in trace.rollouts["finish"]], dtype=bool)


def _is_mixed(solved: Estimate) -> bool:
    """Whether some problems are certainly solved, and others certainly not."""
    return solved.low >= FLOOR and solved.high <= CEILING


def _share_solved(subject: "Subject") -> Estimate:
    """Of training problems, played once each: as many as it takes."""
    right = subject.solved(0, ENOUGH)
    solved = cluster_mean(right, np.arange(len(right)))
    if _is_mixed(solved) or len(right) < ENOUGH:
        return solved
    right = np.append(right, subject.solved(ENOUGH, PROBLEMS))
    return cluster_mean(right, np.arange(len(right)))


def _paid_for_answer(trace: Trace) -> np.ndarray:
    """How right each rollout is, as the run's own part says."""
    name = needed_part(trace)
    paid = trace.parts()[name]
    if not np.isfinite(paid).any():
        raise NotRecorded(f"rollouts.parts[{name!r}]")
    return np.asarray(np.nan_to_num(paid))


def _or_read_as_right(trace: Trace, paid: np.ndarray) -> np.ndarray:
    """The same, or that the marked answer is the gold one: then the policy can do it."""
    right = paid.copy()
    with suppress(NotRecorded):
        judged = judge(trace)
        right[judged.row[judged.right]] = 1.0
    return right


def _can_elsewhere(trace: Trace) -> bool:
    """Whether the held-out evaluation of the start earns more than training does."""
    if "heldout_reward" not in trace.steps:
        return False
    heldout = trace.steps["heldout_reward"]
    first = heldout[np.isfinite(heldout)][0]
    early = trace.rollouts["reward"][first_rows(trace, BEGINNING)]
    return bool(first > np.nanmean(early) + ELSEWHERE)
