"""Form is what the reward pays for: the quickest gradient goes to tags, not to answers.

## What goes wrong
A reward for form is the easiest to earn, so it is learnt first. While it varies it owns the
differences inside groups; once every rollout has it, nothing is left to learn from: the reward
stays at the weight of the form, and the answers are what they were.

## Sign
The correlation, inside groups, of the reward with its part for form (of the parts that do not go
with the answer and are not the length, the one that the reward follows most) and with the part that
says "right". Suspected if form is certainly above 0.7 and certainly ahead of right. A part for form
that every rollout earns, while all groups are equal otherwise, is noted.

Also noted, in a log: a part that certainly does not move, with more to earn, while the reward
certainly rises by other parts alone, which have reached the most that they pay. Whatever that part
is called, nothing was learnt there.

## Probe
The same, on one batch.

## Experiment
A planted fault against none, or the whole sum against the right-or-wrong part; matched seeds,
outcome is the held-out reward.

## Fix
Make form a gate (no form, no reward) instead of a sum; a short supervised warm start teaches form
better than rewards do.

## Not to be confused with
H05 reward-signal: noise, or a part that is not about form, such as length, decides. H32
zero-variance-groups: all rollouts earn the same from the start. H39 reward-parser: the part for
right is misread.

## References
open-r1 issues 373 and 255 (form is gamed, accuracy falls); trl issue 3903; Spurious Rewards
(2506.10947: form alone gave +16 on Qwen-Math).
Thresholds: in 26 healthy lab runs form has 0.24 to 0.45 and right 0.96; 0 of 26 alarm (interval 0
to 13 %).
"""

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import answer_alone
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.column_movement import change_of, column, ends, stands, surely
from flatline.hypotheses.groups import reward_groups, within_correlation
from flatline.hypotheses.lengths import length_parts
from flatline.hypotheses.part_columns import parts_of
from flatline.hypotheses.right import needed_part, of_our_task, single_parts
from flatline.trace import Trace

DOMINATES = 0.7
"""Correlation of reward and form inside groups. Healthy: at most 0.45."""
FEWEST = 8
"""Groups in which right and wrong both occur."""
EARNED = 0.98
"""Share of rollouts that have the form when it is learnt."""
DEAD = 0.5
"""Share of groups of equal rewards that is worth a note then."""
COUNTS = 0.1
"""Share of a log's gain from which on a part is one that makes it, and that may be left open."""
NEXT_TO, TOUCHED = 0.9, 3
"""Share of the most that a part pays where it has come to its end, and rows that pay that."""
OUR_FORM = "format"
"""What our own tasks call their part for form."""
APART = 0.5
"""Correlation of a part with the answer, inside groups, up to which it is about something else: in
healthy lab runs form has at most 0.45 with a reward that follows the answer."""


class FormatDominates(Hypothesis):
    id = "H37"
    name = "format-dominates"
    headline = "Your reward mostly pays for format, not for right answers."
    explains = ("H05", "H08")
    meaning = "The update goes to form; when it is learnt, nothing is left."
    fix = "Multiply by the part for form instead of adding it, or lower its weight."
    mechanism = "The reward follows form inside groups; in the other arm it follows the answer."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Does the reward follow form more than the answer?"""
        if not len(trace.rollouts) and (found := self._in_log(trace)):
            return found
        if not trace.parts():
            raise NotRecorded("rollouts.parts")
        if len(single_parts(trace)) < 2:
            return self.not_applicable(
                "the reward has one part only.", looked_at=len(trace.parts())
            )
        name = needed_part(trace)
        form = _form_part(trace, name)
        if form is None:
            return self.not_applicable(
                "no part of the reward is about form.", looked_at=len(trace.parts())
            )
        reward, group, parts = trace.rollouts["reward"], trace.groups().index, trace.parts()
        by_form = within_correlation(reward, parts[form], group)
        by_answer = within_correlation(reward, parts[name], group)
        if by_answer.n < FEWEST or not np.isfinite(by_form.value):
            return self._learnt(trace, form, parts[form])
        text = (
            f"Inside groups the reward follows `{form}` with a correlation of {by_form} and "
            f"`{name}` with {by_answer.value:.2f}."
        )
        alarm = by_form.low > max(DOMINATES, by_answer.high)
        if not alarm and by_form.value > max(DOMINATES, by_answer.value):
            return self.too_little(f"{text} More groups are needed.")
        return self.found(
            Level.SUSPECT if alarm else Level.OK,
            text,
            measured=by_form,
            expected=f"below {DOMINATES}",
            severity=by_form.value / DOMINATES,
        )

    def _in_log(self, trace: Trace) -> Finding | None:
        """Which part stands while the others make the gain, and have come to their end."""
        parts = parts_of(trace) if "reward" in trace.steps else None
        change = change_of(parts.reward, parts.step) if parts is not None else None
        if parts is None or not parts.named or change is None or surely(change) < 1:
            return None
        moving, step = parts.moving, parts.step
        went = {name: ends(values, step) for name, values in moving.items()}
        gained = {name: late - early for name, (early, late) in went.items()}
        most = sorted(moving, key=lambda name: -gained[name])
        gaining = [name for name in most if gained[name] >= COUNTS * change.value]
        still = [name for name, values in moving.items() if _stands_below(values, step)]
        all_of_it = abs(sum(gained[name] for name in gaining) / change.value - 1) <= COUNTS
        if not still or not all_of_it or not all(_full(moving[name]) for name in gaining):
            return None
        told = ", ".join(
            f"`{name}` ({went[name][0]:.3g} to {went[name][1]:.3g})" for name in gaining
        )
        name = max(still, key=lambda one: went[one][1])
        return self.found(
            Level.NOTE,
            f"`{name}` stays at {moving[name].mean():.3g} while the reward rises by "
            f"{change.value:.3g}: the gain comes from {told}, close to the most that "
            f"{'these pay' if len(gaining) > 1 else 'it pays'}.{_equal_now(trace)}",
            measured=change,
            headline=f"Your reward rises, but `{name}` does not.",
            points_at_cause=True,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The whole reward against its right-or-wrong part."""
        return answer_alone(config)

    def _learnt(self, trace: Trace, form: str, part: np.ndarray) -> Finding:
        """Form that everybody has, in groups that no longer differ."""
        groups = reward_groups(trace)
        earned = float(np.nanmean(part)) if np.isfinite(part).any() else 0.0
        dead = float(groups.equal.mean()) if groups.n else 0.0
        if earned < EARNED or dead < DEAD:
            return self.too_little("right and wrong answers hardly ever meet inside a group")
        return self.found(
            Level.NOTE,
            f"{earned:.0%} of the rollouts earn `{form}`, and {dead:.0%} of the groups are equal.",
            measured=earned,
        )


def _stands_below(values: np.ndarray, step: np.ndarray) -> bool:
    """Whether a part certainly does not move, pays something, and has paid more."""
    late = values[-(len(values) // 3) :].mean()
    return stands(values, step) and bool(0 < late < NEXT_TO * values.max())


def _full(values: np.ndarray) -> bool:
    """Whether a part has come to the most that any row has, as several rows have."""
    late = values[-(len(values) // 3) :]
    return bool(late.mean() >= NEXT_TO * values.max() and (values == values.max()).sum() >= TOUCHED)


def _equal_now(trace: Trace) -> str:
    """That more and more groups have nothing to compare, in words."""
    share, step = column(trace, "zero_std_share"), trace.steps["step"]
    if surely(change_of(share, step)) < 1:
        return ""
    before, after = ends(share, step)
    return f" Groups of equal rewards, which teach nothing, go from {before:.0%} to {after:.0%}."


def _form_part(trace: Trace, right: str) -> str | None:
    """The part that is about something else than the answer, the reward following it most."""
    if of_our_task(trace):
        return OUR_FORM if OUR_FORM in trace.parts() else None
    group, reward = trace.groups().index, trace.rollouts["reward"]
    no_form = {right, *length_parts(trace)}
    others = {name: values for name, values in single_parts(trace).items() if name not in no_form}
    follows = {
        name: float(np.nan_to_num(within_correlation(reward, values, group).value, nan=-2))
        for name, values in others.items()
        if not within_correlation(values, trace.parts()[right], group).value > APART
    }
    return max(follows, key=lambda name: follows[name], default=None)
