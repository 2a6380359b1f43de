"""Evaluation and training measure different things: prompts, limits, sampling or scorer differ.

## What goes wrong
Two code paths sample and score: one in training, one in evaluation. If they differ in a prompt, a
turn limit, a temperature or a scorer, what is trained is not what is measured. A flat evaluation
then says nothing about training, and vice versa.

## Sign
Suspected if the held-out reward before the first step and the training reward of the first steps,
when the policy is still the same, certainly differ by more than a third of the reward's span. Other
problems, or greedy decoding in evaluation, can also explain a difference.

A note if a log's training reward certainly rises, and its held-out reward certainly by less than
half as much over the same stretch, if at all: a few prompts may have been learnt by heart, or
something is paid that evaluation does not measure.

Suspected from the arguments alone: the weights loaded at the end are chosen by the lowest
evaluation loss, which for GRPO says nothing about how good a policy is, or by the lowest reward.

## Probe
The same problems with the same random numbers through both paths: prompts must be equal token by
token, limits and sampling the same, and one completion must earn the same reward in both.

## Experiment
A run with the planted fault against the same without it, matched seeds. Without one, no training is
needed: evaluate with the settings of training, one at a time, on the same problems.

## Fix
One environment object and one scorer for both; evaluate with the sampling of training.

## Not to be confused with
H39 reward-parser and H44 data-order: the training reward is itself wrong, so it differs from any
other. H04 context-truncation: training is cut where evaluation is not. H06 and H17: both agree at
the start and diverge later.

## References
bdsaglam/rlvr, the investigation that this project began with, its H08: 22 % right in evaluation and
0 % in training, on the same problems.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.groups import mean_of, reward_groups
from flatline.hypotheses.held_out import left_behind
from flatline.stats import difference_of_means
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.records import HeldoutPath
    from flatline.live.subject import Subject

APART = 0.33
"""Difference that other problems do not explain, as a share of the reward's span: three times the
largest of the healthy lab runs (0.11), since the interval leaves out the error of the held-out
mean. False alarms: see docs/hypotheses.md."""
FIRST_STEPS = 3
"""Training steps whose policy is still that of the first evaluation."""
SAME = 1e-6
"""Two scores of one completion that differ by more are two scores."""
_SAYS_NOTHING = (
    "whatever the policy earns, the loss of GRPO is about 0 plus the KL, so the checkpoint that"
)
WRONG_WAY = {
    ("loss", "lowest"): f"{_SAYS_NOTHING} moved least wins, or one by chance",
    ("loss", "highest"): f"{_SAYS_NOTHING} moved most wins, or one by chance",
    ("reward", "lowest"): "that is the checkpoint that earned least",
}
"""Why a checkpoint is not the best one, by what its metric is about and which end counts."""


class EvaluationMismatch(Hypothesis):
    id = "H08"
    name = "evaluation-mismatch"
    headline = "Your training and your evaluation do not measure the same thing."
    explains = ()
    meaning = "What is practised is not what is measured."
    fix = "Run and score training and evaluation with the same environment and the same limits."
    mechanism = (
        "Training and held-out reward differ while the policy is the same; in the other arm they "
        "agree."
    )

    def sign(self, trace: Trace) -> Finding:
        """Do both agree while the policy is the same?"""
        chosen = self._chosen(trace.settings.get("best_model_by"))
        if chosen is not None:
            return chosen
        heldout, step = trace.steps["heldout_reward"], trace.steps["step"]
        behind = self._left_behind(trace)
        if behind is not None:
            return behind
        groups = reward_groups(trace)
        known = np.isfinite(heldout)
        if not known.any():
            raise NotRecorded("steps.heldout_reward")
        first = int(step[known].min())
        start = int(groups.step.min()) if groups.n else 0
        if not groups.n or first >= start + FIRST_STEPS:
            return self.too_little(
                "there was no held-out evaluation before training, or no training step after it"
            )
        span = groups.span
        early = groups.mean[groups.step < max(first + 1, start) + FIRST_STEPS]
        before = float(heldout[known][np.argmin(step[known])])
        gap = mean_of(early - before)
        text = (
            f"Training earns {before + gap.value:.3f} in its first steps and held-out problems "
            f"{before:.3f} at step {first}: {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]."
        )
        if not span and gap.value:
            return self.too_little(f"{text} Training pays one reward: the unit is not known.")
        if gap.low > APART * span or gap.high < -APART * span:
            level = Level.SUSPECT
        elif max(-gap.low, gap.high) > 2 * APART * span:
            return self.too_little(f"{text} Twice as many prompts are needed.")
        else:
            level = Level.OK
        return self.found(
            level,
            text,
            measured=gap,
            expected=f"within {APART * span:.2g}",
            severity=abs(gap.value) / max(APART * span, SAME),
        )

    def _left_behind(self, trace: Trace) -> Finding | None:
        behind = left_behind(trace)
        if behind is None:
            return None
        gain, change = behind
        return self.found(
            Level.NOTE,
            f"The training reward rises by {gain.value:+.3g} between the halves of the "
            f"evaluations, and the held-out reward does not follow: {change.value:+.3g} "
            f"[{change.low:+.3g}, {change.high:+.3g}].",
            measured=change,
            headline="What it learns does not show in the evaluation.",
            points_at_cause=True,
        )

    def _chosen(self, by: str | None) -> Finding | None:
        """Is the checkpoint that is kept the best one by something that means it?"""
        name, _, end = (by or "").partition(", ")
        wrong = WRONG_WAY.get((_kind(name), end))
        if wrong is None:
            return None
        return self.found(
            Level.SUSPECT,
            f"`load_best_model_at_end` restores the checkpoint with the {end} `{name}`: {wrong}. "
            "What was learned after it is lost.",
            expected="the highest evaluation reward",
            fix='Set `metric_for_best_model="eval_reward"` and `greater_is_better=True`, or leave '
            "`load_best_model_at_end` out.",
            headline="Your final weights are not the best ones.",
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do both paths do the same on the same problems?"""
        chosen = self._chosen(subject.settings.get("best_model_by"))
        if chosen is not None:
            return chosen
        path = subject.heldout_path()
        if path.problems == 0:
            return self.too_little("no problem could be run on both paths")
        wrong = _differences(path)
        if wrong:
            return self.found(
                Level.FAULT,
                f"Training and evaluation differ on the same {path.problems} problems: "
                f"{'; '.join(wrong)}.",
                measured=float(np.mean(path.training_reward) - np.mean(path.heldout_reward)),
                expected="equal prompts, limits and scores",
                evidence=_examples(path),
            )
        gap = difference_of_means(path.heldout_reward, path.training_reward)
        return self.found(
            Level.OK,
            f"Both paths give equal prompts, limits and scores on {path.problems} problems; "
            f"{path.same_completion:.0%} of the completions are the same.",
            measured=gap,
            expected="0",
            looked_at=path.problems,
        )


def _kind(metric: str) -> str:
    """What a metric is about, by the end of its name."""
    last = metric.removesuffix("/mean").rsplit("/", 1)[-1]
    return next((kind for kind in ("loss", "reward") if last.endswith(kind)), "")


def _differences(path: "HeldoutPath") -> list[str]:
    """What is not the same, in words."""
    found = [] if path.prompts_equal else ["prompts are not the same tokens"]
    found += [
        f"{name} is {here} in training and {there} in evaluation"
        for name, (here, there) in sorted(path.limits.items())
    ]
    scored = np.flatnonzero(np.abs(path.rescored - path.heldout_reward) > SAME)
    if len(scored):
        found.append(
            f"{len(scored)} of {len(path.rescored)} completions of evaluation earn another reward "
            "from the reward functions of training"
        )
    return found


def _examples(path: "HeldoutPath") -> list[Evidence]:
    apart = np.flatnonzero(np.abs(path.rescored - path.heldout_reward) > SAME)
    return [
        Evidence(
            text=f"rollout {at}: evaluation pays {path.heldout_reward[at]:.3f}, the reward "
            f"functions of training {path.rescored[at]:.3f}"
        )
        for at in apart[:3]
    ]
