"""A judge or verifier that fails is paid as if the answer were wrong, or it contradicts itself.

## What goes wrong
A request to the judge times out, a sandbox dies, an answer of the judge cannot be read: the reward
function catches the error and returns 0, or returns None and the row is added up without that part.
A right answer then earns what a wrong one earns, by chance, and more often the longer it takes to
judge. With a share e of failures the difference between right and wrong shrinks to 1 - e and a
noise of variance e(1 - e) is added: at one half, four times as many prompts are needed. A judge
that says yes and no to the same text does the same.

## Sign
Two things, each suspected from three prompts on:

- the same completion of the same prompt, in one step, is paid as usual in one row and with the
  lowest reward of the run in another (healthy: never), and not always in the later row;
- rows lack a part of the reward that other rows of their group have and that has a weight, while
  another function paid them: the sum is that of the rest, so the missing part counts as 0.

Unknown if no completion came twice and every row has every part.

## Probe
The trainer's reward functions are called twice more on the batch (once, if that takes over 30
seconds). Suspected if at least three rows and 2 % of all flip between the lowest pay and another,
or if more than half of the variance inside groups is what changed between two calls; less is noted.

## Experiment
A planted fault against none, matched seeds; the outcome is the held-out reward. Your own judge is
not a setting: train with failures left out of the loss, and without.

## Fix
Try again, then give up the whole row: let the function return None for every part of a row that
could not be judged (TRL 1.16 then leaves it out of the baseline), count failures in a metric of
their own, ask a judge at temperature 0, or take the majority of several answers.

## Not to be confused with
H39 reward-parser: the same answer is misread every time. H05 reward-signal: every reward is noisy,
not some rows. H52 rewards-depart: a function that remembers pays another amount the second time and
the same ever after; or the trainer turns a row for which every function returned None into 0, as
TRL before 1.6 does. H41 tool-errors: what fails is the tool, before the answer.

## References
NeMo-RL issue 431 (exceptions become 0) and the review of pull request 2479 (every error of a judge
becomes 0.0, no metric shows it); verl pull request 6673 (a verifier that hangs; a timeout a
sample); AReaL issue 548; stella issue 3264 (verifier timeouts on the heaviest tasks, read as 0).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.groups import EQUAL, prompts_of, unless_batch_alarms
from flatline.hypotheses.repeats import repeats, said_twice
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

FEWEST = 3
"""Prompts, or rows asked about again, that must show it. Healthy: 0."""
APART = 0.25
"""Of the span from the lowest to the highest pay: crumbs of form are nobody's failure."""
FLIPS = 0.02
"""Share of the rows that flip between the lowest pay and another. Healthy: 0."""
NOISE = 0.5
"""Share of the variance inside groups that is the judge's own. Healthy: 0."""


EPISODES = "an episode is not reset, so the one before it decides, or the judge fails."
NOT_THE_SAME = "Your environment is not the same for every episode, or your judge fails."
PLAY_TWICE = (
    "Reset the environment before every completion, or make a new one, and run one completion "
    "twice: it must earn the same. If it does, look for errors and time-outs of the judge that "
    "become 0."
)
"""Where completions are played in an environment or by a function of the user's."""


class VerifierFailures(Hypothesis):
    id = "H68"
    name = "verifier-failures"
    headline = "Your judge fails on some answers, and these are paid as if they were wrong."
    explains = ("H05", "H08", "H39", "H52")
    meaning = "Right answers are punished by chance, so most of what is learnt is noise."
    fix = (
        "Let a reward function return None for what could not be judged, after another try; count "
        "the failures; never turn an error or a time-out into 0."
    )
    mechanism = "The same completion is paid and not paid; in the other arm it is always paid."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is one completion paid in one row and not in another, or a part lost?"""
        lost = self._lost_parts(trace)
        if lost is not None:
            return lost
        pairs = repeats(trace, np.isfinite(trace.rollouts["reward"]))
        if not pairs:
            return self.too_little("no completion of a prompt came twice in a step")
        return self._flipped(trace, pairs) or self.found(
            Level.OK,
            f"{len(pairs)} repeated completions of a prompt earn the same each time, or differ on "
            f"fewer than {FEWEST} prompts.",
            measured=0.0,
            expected="0",
            looked_at=len(pairs),
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do the reward functions pay the same for the same batch?"""
        again = subject.paid_again()
        before, now = again.before_R, again.now_R
        flips = _flips(before, now, np.concatenate([before, now]))
        changed = np.abs(before - now) > EQUAL
        if not changed.any():
            text = f"Asked again, the reward functions pay all {len(now)} rows the same."
            known = int(np.isfinite(before - now).sum())
            steady = self.found(Level.OK, text, measured=0.0, expected="0", looked_at=known)
            return unless_batch_alarms(steady, self.sign, subject.trace)
        if flips.sum() >= FEWEST and flips.mean() > FLIPS:
            return self._failing(before, now, flips)
        return self._moody(before, now, again.group_R, int(changed.sum()))

    def _flipped(self, trace: Trace, pairs: list[tuple[int, int]]) -> Finding | None:
        """Completions that the reward, or a part of it, pays in one row and not in another."""
        weights = trace.settings.get("reward_weights") or {}
        parts = {f"`{n}` ": v for n, v in trace.parts().items() if weights.get(n)}
        for name, paid in {"": trace.rollouts["reward"], **parts}.items():
            earlier, later = np.array(pairs).T
            flips = _flips(paid[earlier], paid[later], paid)
            flipped = [pair for pair, flip in zip(pairs, flips, strict=True) if flip]
            prompts = {prompts_of(trace)[trace.groups().index[a]] for a, _ in flipped}
            # A reward for being different pays the first of two alike, and not the second.
            either_way = any(paid[a] < paid[b] for a, b in flipped)
            if len(prompts) >= FEWEST and either_way:
                return self._paid_and_not(trace, name, flipped, len(pairs), len(prompts))
        return None

    def _paid_and_not(
        self, trace: Trace, part: str, flipped: list[tuple[int, int]], pairs: int, prompts: int
    ) -> Finding:
        return self.found(
            Level.SUSPECT,
            f"{len(flipped)} of {pairs} repeated completions of a prompt are paid {part}in one row "
            f"and get the lowest reward in another, on {prompts} prompts: "
            + (EPISODES if _is_played(trace) else "the judge fails, or contradicts itself."),
            measured=len(flipped) / pairs,
            expected="0",
            evidence=[said_twice(trace, a, b) for a, b in flipped[:3]],
            severity=1 + len(flipped) / pairs,
            headline=NOT_THE_SAME if _is_played(trace) else None,
            fix=PLAY_TWICE if _is_played(trace) else None,
        )

    def _lost_parts(self, trace: Trace) -> Finding | None:
        """Rows without a part that others of their group have."""
        weights = trace.settings.get("reward_weights") or {}
        weighted = [v for name, v in trace.parts().items() if weights.get(name)]
        group = trace.groups().index if weighted else np.zeros(0, dtype=int)
        lost = np.zeros(len(group), dtype=bool)
        for values in weighted:
            has = np.isfinite(values)
            lost |= ~has & (np.bincount(group, has, minlength=group.max() + 1)[group] > 0)
        if not weighted or not lost.any():
            return None
        # A row that nobody judged has no reward: what the trainer makes of it is H52's.
        lost &= np.isfinite(np.stack(list(trace.parts().values()))).any(axis=0)
        lost &= np.nan_to_num(trace.rollouts["advantage"]) != 0
        prompts = set(prompts_of(trace)[group[lost]])
        if len(prompts) < FEWEST:
            return None
        return self.found(
            Level.SUSPECT,
            f"{lost.mean():.1%} of the rollouts lack a part of the reward that others of their "
            f"group have, and are trained on all the same: it counts as 0, on {len(prompts)} "
            "prompts.",
            measured=float(lost.mean()),
            expected="0",
            evidence=[_row(trace, int(row)) for row in np.flatnonzero(lost)[:3]],
            severity=1 + float(lost.mean()),
        )

    def _failing(self, before: np.ndarray, now: np.ndarray, flips: np.ndarray) -> Finding:
        row = int(np.flatnonzero(flips)[0])
        return self.found(
            Level.SUSPECT,
            f"{flips.sum()} of {len(flips)} rows earn the least there is at one asking and more at "
            "another, with nothing changed: the judge fails, or contradicts itself.",
            measured=float(flips.mean()),
            expected="0",
            evidence=[Evidence(text=f"row {row} earns {before[row]:.3g}, then {now[row]:.3g}")],
            severity=1 + float(flips.mean()),
        )

    def _moody(
        self, before: np.ndarray, now: np.ndarray, group: np.ndarray, changed: int
    ) -> Finding:
        means = np.bincount(group, now) / np.maximum(np.bincount(group), 1)
        within = float(np.mean((now - means[group]) ** 2))
        own = float(np.mean((before - now) ** 2) / 2)
        share = own / max(within, EQUAL)
        much = changed >= FEWEST and share > NOISE
        return self.found(
            Level.SUSPECT if much else Level.NOTE,
            f"Called again on the same batch, the reward functions pay {changed} of {len(now)} "
            f"rows differently: {min(share, 1):.0%} of the variance inside groups is their own "
            "noise.",
            measured=share,
            expected=f"below {NOISE:g}",
            severity=1 + min(share, 1),
            headline="Your judge pays the same completion differently each time.",
        )


def _flips(a: np.ndarray, b: np.ndarray, paid: np.ndarray) -> np.ndarray:
    """Paid the least that anybody is in one, and clearly more in the other."""
    known = paid[np.isfinite(paid)]
    least, span = (known.min(), np.ptp(known)) if known.size else (np.nan, np.nan)
    clearly = max(APART * span, EQUAL)
    return np.asarray((np.fmin(a, b) <= least + EQUAL) & (np.abs(a - b) > clearly))


def _is_played(trace: Trace) -> bool:
    """Whether a player of the user's own stands between completions and their pay."""
    given = trace.settings
    return trace.run.get("source") == "attach" and given.get("tools", 0) is None


def _row(trace: Trace, row: int) -> Evidence:
    return Evidence.of(
        trace,
        row,
        f"rollout {int(trace.rollouts['rollout'][row])} was not judged by every reward function "
        f"and earns {trace.rollouts['reward'][row]:.3g}",
    )
