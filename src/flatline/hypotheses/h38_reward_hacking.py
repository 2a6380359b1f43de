"""The reward is gamed: it rises, and what it stands for does not.

## What goes wrong
A reward can be earned in a way that nobody intended: cite every document, give several answers,
search for everything at once. It looks sound at first, because no rollout does that yet. The policy
finds the way, the training reward climbs, and the answers get no better or worse.

## Sign
Suspected if three things hold: the training reward certainly rises, the part that says "right"
certainly falls (by 0.05 and more), and the reward followed the right answer in the first third of
the steps (above 0.4; if it never did, that is H05). Calls or tokens per rollout that change by half
are reported with it. Another part that falls while the reward rises is noted.

A log does not say which part is the right answer. There it is suspected if the reward certainly
rises and either a held-out score certainly falls, from the start or from its best, or a part that
paid a quarter of the reward at the start loses a third of itself. It is noted if another part of
the reward certainly falls, or if a held-out score ends so far below its start as noise alone does
in one run of twenty.

## Probe
Scripted episodes that try the known tricks (all documents fetched, all documents cited, two
answers) through the trainer's own reward. Each must earn less than gold. A fault where gold earns
the maximum, honest mistakes earn less, and a trick earns as much.

## Experiment
A planted fault against none; matched seeds, outcome is the held-out reward, scored without the gap
that the training reward has.

## Fix
Close the gap: pay precision as well as recall, accept one answer, cap what repetition earns. Watch
a held-out score that the policy is not paid for.

## Not to be confused with
H05 reward-signal: the reward did not follow the answer from the start. H39 reward-parser: honest
mistakes are paid as right. H08 evaluation-mismatch: training and held-out differ before training.
H30 entropy-collapse: pass@k falls while pass@1 of the same evaluation rises.

## References
Search-R1 revisited (the score lags the collapse of the reasoning); open-r1 issues 293 and 373.
Thresholds: in 26 healthy lab runs right rises with the reward, and `flatline tasks check` finds no
trick that earns what gold earns; 0 of 26 alarm (interval 0 to 13 %).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.column_movement import change_of, ends, surely
from flatline.hypotheses.drift import Drift, drift_of
from flatline.hypotheses.groups import reward_rises, within_correlation
from flatline.hypotheses.held_out import (
    COMPARED,
    FALLS,
    change_of_score,
    course_of,
    narrows,
    scores_of,
)
from flatline.hypotheses.part_columns import Parts, parts_of
from flatline.hypotheses.right import needed_part, single_parts
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

FOLLOWS = 0.4
"""Correlation of reward and right at the start below which it is H05's business."""
PART_FALLS = 0.1
"""Fall of any other part that is noted."""
HABIT = 0.5
"""Change of a habit, as a share of what it was, that is noted."""
TRICKS = ("cite_everything", "dump_all_documents", "two_answers")
"""Scripted episodes that earn what nobody meant to pay, if anything is wrong."""
GOLD_IS_MAXIMUM = 0.02
"""What gold may lack of the maximum before the reward is misread, which is H39."""
MAIN, LOST = 0.25, 1 / 3
"""Share of the reward at the start that a main part of it pays, and how much of itself it loses, to
be suspected in a log."""


class RewardHacking(Hypothesis):
    id = "H38"
    name = "reward-hacking"
    headline = "Your policy games the reward."
    explains = ("H39",)
    meaning = "The policy is paid for a trick, and learns the trick."
    fix = "Pay less for the quoted trick than for an honest answer; judge on what is not paid for."
    mechanism = "A trick earns what gold earns; in the other arm it earns less."

    def sign(self, trace: Trace) -> Finding:
        """Does the reward rise while what it stands for falls?"""
        if not len(trace.rollouts) and (found := self._in_log(trace)):
            return found
        name = needed_part(trace)
        right = drift_of(trace, trace.parts()[name])
        if right is None:
            return self.too_little("a run of at least six steps is needed")
        text = f"`{name}` goes from {right.before:.2f} to {right.after:.2f}"
        falls = right.change.high < 0 and right.change.value < -FALLS
        told = _fallen_parts(trace, name)
        if not (falls or told):
            return self.found(Level.OK, f"{text}, and no part falls.", measured=right.change)
        if not reward_rises(trace):
            return self.found(
                Level.OK, f"{text}, and the reward does not rise.", measured=right.change
            )
        if falls and _followed_at_first(trace, name):
            return self.found(
                Level.SUSPECT,
                f"{text} while the reward rises. {_habits(trace)}".strip(),
                measured=right.change,
                expected="a rise",
                severity=-right.change.value / FALLS,
            )
        return self.found(
            Level.NOTE,
            f"{text} while the reward rises. {told}".strip(),
            measured=right.change,
            points_at_cause=True,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do tricks earn what gold earns?"""
        oracle = subject.oracle()
        if oracle.problems == 0:
            return self.too_little("no problem could be run")
        if any(case.reward < 1 - GOLD_IS_MAXIMUM for case in oracle.below_maximum):
            return self.too_little("gold itself earns less than the maximum: see H39 reward-parser")
        tied = oracle.not_below_gold
        tricks = [case for case in tied if case.script in TRICKS]
        text = f"{len(tricks)} tricks earn what gold earns on {oracle.problems} problems"
        if not tricks or len(tricks) < len(tied):
            also = f", and so do {len(tied) - len(tricks)} honest mistakes" if tied else ""
            return self.found(
                Level.OK,
                f"{text}{also}.",
                measured=float(len(tricks)),
                looked_at=oracle.played,
            )
        return self.found(
            Level.FAULT,
            f"{text}; honest mistakes earn less.",
            measured=float(len(tricks)),
            expected="0",
            evidence=[
                Evidence(
                    text=f"problem {case.problem}, {case.script}: pays {case.reward:.3g}, gold "
                    f"{case.gold_reward:.3g}"
                )
                for case in tricks[:3]
            ],
        )

    def _in_log(self, trace: Trace) -> Finding | None:
        """Which column falls while the reward rises, in rows of a log."""
        if surely(change_of(trace.steps["reward"], trace.steps["step"])) < 1:
            return None
        scores = scores_of(trace)
        if tries := narrows(trace):  # which is H30's
            scores = {name: values for name, values in scores.items() if name != tries.several}
        if outside := _falling(scores, trace.steps["step"]) or _past_best(trace, scores):
            changes = {name: change_of_score(values) for name, values in scores.items()}
            rising = [f"`{n}`" for n, change in changes.items() if change and change.low > 0]
            also = f" and {rising[0]} rise" if rising else " rises"
            return self.found(
                Level.SUSPECT,
                f"{' and '.join(outside[:2])} while the training reward{also}.",
                expected="both rise",
                headline="Your training reward rises and your held-out score falls.",
                fix="Judge by the held-out score: keep the checkpoint of its best evaluation, and "
                "look at what the completions of the last steps are paid for.",
            )
        parts = parts_of(trace)
        paid = {} if parts is None or not parts.named else parts.moving
        if parts is None or not (inside := _falling(paid, parts.step)):
            return self._perhaps(trace, scores, parts)
        elsewhere = f"{' and '.join(inside[:2])} while the reward rises: the gain comes from"
        if _main_part_falls(parts):
            return self.found(
                Level.SUSPECT,
                f"{elsewhere} elsewhere{_gaining(paid, parts.step)}.",
                expected="no main part falls",
                headline="Your policy games the reward: it rises while a main part of it falls.",
                fix="Pay less for the part that rises, or cap it; judge by right answers alone.",
            )
        return self.found(
            Level.NOTE,
            f"{elsewhere} elsewhere.",
            headline="Part of your reward falls while the whole rises.",
            points_at_cause=True,
        )

    def _perhaps(
        self, trace: Trace, scores: Mapping[str, np.ndarray], parts: Parts | None
    ) -> Finding | None:
        """A held-out score that ends below its start, as noise seldom does."""
        courses = {name: course_of(each, trace.steps["step"]) for name, each in scores.items()}
        lower = {name: one for name, one in courses.items() if one is not None and one.leans}
        if not lower:
            return None
        told = " and ".join(
            f"`{name}` is {one.first:.3g} at first, {one.best:.3g} at its best (step "
            f"{one.best_at:g}) and {one.last:.3g} in the last {COMPARED} evaluations"
            for name, one in list(lower.items())[:2]
        )
        paid = {} if parts is None or not parts.named else parts.moving
        gained = _gaining(paid, parts.step) if parts is not None else ""
        gained = f"; the part that rises most is{gained[4:]}" if gained else ""
        return self.found(
            Level.NOTE,
            f"{told}, while the training reward rises{gained}. One in twenty curves of noise "
            "falls as far.",
            headline="Your training reward rises, and your held-out score ends below its start.",
            points_at_cause=True,
        )


def _falling(columns: Mapping[str, np.ndarray], step: np.ndarray) -> list[str]:
    """The columns that certainly fall, in words."""
    falling = [name for name, values in columns.items() if surely(change_of(values, step)) < 0]
    told = {name: ends(columns[name], step) for name in falling}
    return [
        f"`{name}` falls from {before:.3g} to {after:.3g}"
        for name, (before, after) in told.items()
        if before - after >= FALLS * max(1.0, abs(before))
    ]


def _past_best(trace: Trace, scores: Mapping[str, np.ndarray]) -> list[str]:
    """The held-out scores that certainly fall after their best, in words."""
    step = trace.steps["step"]
    found = {name: course_of(values, step) for name, values in scores.items()}
    return [
        f"`{name}` falls from {course.best:.3g} at its best (step {course.best_at:g}) to "
        f"{course.last:.3g} in the last {COMPARED} evaluations"
        for name, course in found.items()
        if course is not None
        and course.falls
        and course.best - course.last >= FALLS * max(1.0, abs(course.best))
    ]


def _main_part_falls(parts: Parts) -> bool:
    """Whether a part that paid much of the reward at the start certainly loses much of itself."""
    falling = [v for v in parts.moving.values() if surely(change_of(v, parts.step)) < 0]
    paid, _ = ends(parts.reward, parts.step)
    lost = [ends(values, parts.step) for values in falling]
    return any(before >= MAIN * paid > 0 and after <= (1 - LOST) * before for before, after in lost)


def _gaining(parts: Mapping[str, np.ndarray], step: np.ndarray) -> str:
    """The part that certainly rises most, in words."""
    rising = [name for name, values in parts.items() if surely(change_of(values, step)) > 0]
    went = {name: ends(parts[name], step) for name in rising}
    if not went:
        return ""
    name = max(went, key=lambda one: went[one][1] - went[one][0])
    return f", in `{name}` ({went[name][0]:.3g} to {went[name][1]:.3g})"


def _followed_at_first(trace: Trace, name: str) -> bool:
    """Whether the reward followed the answer in the first third of the steps."""
    step = trace.rollouts["step"]
    steps = np.unique(step)
    early = step <= steps[len(steps) // 3 - 1]
    group = trace.groups().index[early]
    reward, right = trace.rollouts["reward"][early], trace.parts()[name][early]
    return within_correlation(reward, right, group).low > FOLLOWS


def _fallen_parts(trace: Trace, right: str) -> str:
    """The parts that certainly fall, in words."""
    others = {n: v for n, v in single_parts(trace).items() if n != right}
    drifts = {name: drift_of(trace, values) for name, values in sorted(others.items())}
    fallen = [
        f"`{name}` falls from {drift.before:.2f} to {drift.after:.2f}"
        for name, drift in drifts.items()
        if drift is not None and drift.change.high < 0 and drift.change.value < -PART_FALLS
    ]
    return f"{'; '.join(fallen)}." if fallen else ""


def _habits(trace: Trace) -> str:
    """What the policy does much more or less of, in words."""
    names = {"tool_calls": "calls", "model_tokens": "tokens"}
    drifts = {
        word: drift_of(trace, trace.rollouts[name])
        for name, word in names.items()
        if name in trace.rollouts
    }
    told = [
        f"{word} per rollout go from {drift.before:.3g} to {drift.after:.3g}"
        for word, drift in drifts.items()
        if drift is not None and _changed(drift)
    ]
    return f"{'; '.join(told).capitalize()}." if told else ""


def _changed(drift: Drift) -> bool:
    sure = max(drift.change.low, -drift.change.high)
    return sure > 0 and abs(drift.change.value) > HABIT * abs(drift.before)
