"""The learning rate does not fit: the policy hardly moves, or it is destroyed in a few steps.

## What goes wrong
LoRA wants about ten times the rate of full fine-tuning, more in short runs, because B starts at 0.
A rate copied from full fine-tuning changes the weights and not the behaviour. A rate that is far
too high breaks the policy before a curve can show it.

## Sign
- Too low: after 20 steps or more the reward does not rise, and the KL to the reference is certainly
  below 1e-4. If no KL was recorded: neither the entropy nor the completion length has changed by a
  tenth, and the sampler does not part from the trainer. If the KL is above 0.1 from the start, only
  its change shows a movement. In a log of 60 rows or more also: the KL is as small and as large in
  the first rows as in the last, while the reward is flat.
- Too high: against the first prompts of the run the reward has certainly fallen by 0.1, and at the
  same time the KL exceeds 1 nat a token from a start below 0.1, or entropy or length have changed
  threefold.
- Never reached: a warm-up that is at least twice as long as the planned run.

## Probe
One optimizer step on the batch, undone: its KL per token at the configured rate. Times the steps of
the run (`max_steps`, else epochs times the steps of one) it must reach 1e-3, or the rate is too
low; a single step certainly above 1 is too high, certainly above 0.2 a note. Certainly: between
rollouts, and with no token counted as more than ten times as likely as before, since one that was
hardly possible may be most of the mean. (Steps do not all go one way: in the lab 40 of them reach 8
to 12 times the KL of the first, where a straight way would give 1600, so times the steps is
generous.) Where it is not right, the same step is taken at other rates up to 0.01, and the probe
names one whose step was seen to have a KL of 1e-4 to 1e-2; where none has, it names none.

## Experiment
The rate in use against the usual one of the model and kind (lab 3e-3 with LoRA and 6e-4 without,
other models 1e-5 and 1e-6), or a planted fault against none; matched seeds, outcome is the held-out
reward. At the usual rate there is nothing to compare: let the probe name a rate, and set it.

## Fix
The rate that the probe tried and names, constant; adapters on all linear layers.

## Not to be confused with
H26 optimizer-not-stepping: the weights do not change at all. H32 zero-variance-groups: there is no
gradient to scale. H06 lora-weight-sync: the trainer moves and the sampler does not; their log-probs
part. H03 and H09 also end in an exploding KL, but are wrong in the first step already.

## References
Schulman et al., "LoRA Without Regret" (2025); TRL's guide to it (5e-5 and more). TRL issue 2872
(LoRA at 5e-7 does not learn, full fine-tuning does); hello-agents issue 770 (5e-5 destroys a 0.6B
model). The seeds tried 1e-6 to 1e-5 with LoRA, the low end of what moves in 50 steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import mean_of, reward_groups
from flatline.hypotheses.logs import spacing
from flatline.hypotheses.trend import trend_of
from flatline.spec.schedule import GIVEN
from flatline.stats import Estimate, difference_of_means
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.records import OneStep
    from flatline.live.subject import Subject

FEWEST = 20
"""Steps after which a healthy run has moved visibly. Lab, one run of 30 steps: the reward by 0.3,
which rules it out; the entropy by -6 % [-37 %, +26 %], too noisy to show it."""
UNMOVED_KL = 1e-4
"""KL of a policy that has not moved. Healthy: 6e-4 after 4 steps of the lab, 1.4e-3 on GSM8K.
False alarms: see docs/hypotheses.md."""
UNMOVED = 0.1
"""Relative change of entropy and length that does not count. A guess, not calibrated. False
alarms: see docs/hypotheses.md."""
PARTED = 0.01
"""Nats by which sampler and trainer have parted when only the trainer moves; healthy: 1e-6."""
MANY, FIRST, MANY_PARTS, GROWS = 60, 3, 12, 0.3
"""Rows of a log that show that a KL does not grow, those that are its beginning, the part of them
that is its end, and relative growth that is excluded."""
FALL = 0.1
"""Fall of the reward, as a share of its span, that counts as destruction."""
BROKEN_KL, SOUND_KL = 1.0, 0.1
"""KL per token of a broken policy, and of one that still was sound. Healthy: 0.01 to 0.3."""
SHIFT = 3.0
"""Factor by which entropy or length change when a policy breaks. A healthy entropy may fall by
as much, but then the reward does not fall."""
BEGINNING = 8
"""Groups that stand for the start: later ones were already played by another policy."""
ENOUGH_KL = 1e-3
"""KL that a run needs to show anything. Healthy gains: 0.0014 (GSM8K), 0.009 (lab)."""
SHORT_OF = 10.0
"""Times that a run must fall short of it, to be suspected: steps that agree take it further than
their sum, and a run of a few steps is somebody's trial."""
REACHED = 0.5
"""Share of the rate asked for that the warm-up must reach before the run ends."""
NO_WARM_UP = ("constant", GIVEN)
"""Schedules that have none, or of which it is not known."""
LARGE_KL = 0.2
"""KL that one step of a healthy policy does not have at least: 0.02 in the lab, 0.12 in stock TRL;
see docs/hypotheses.md. A run whose first step had 0.58 learned all the same, so it is worth a note
and no more."""
HUGE_KL = 1.0
"""KL of one step after which little is left of the policy; 3.1 at 30 times the rate of the lab."""
MORE_TO_MOVE = (
    "Raise {learning_rate}, or give it more to move: adapters on more layers, or of a higher rank. "
    "No rate up to 0.01 gives a step of visible size."
)
"""Where no rate that was tried moves the policy enough."""

TOO_LOW = "Your policy hardly moves: the learning rate is too low for this run."
WARMS_UP = "Your run ends in the warm-up of its learning rate."
TOO_HIGH = "Your updates are too large: the learning rate is too high."


class LearningRate(Hypothesis):
    id = "H24"
    name = "learning-rate"
    headline = "Your learning rate does not fit this run."
    explains = ("H03", "H08", "H30")
    meaning = "At this rate the policy cannot get anywhere in the steps that the run has."
    fix = "Find a rate by {checkup}: one step should have a KL of 1e-4 to 1e-2 per token."
    mechanism = (
        "The policy hardly moves or is destroyed; in the other arm it moves and is not destroyed."
    )

    def sign(self, trace: Trace) -> Finding:
        """Has the behaviour moved, and not too far?"""
        trend = trend_of(trace)
        if trend is not None and trend.rises:
            return self.found(
                Level.OK,
                "The reward rises, so the rate moves the policy.",
                looked_at=trend.change.n,
            )
        steps = trace.settings.get("max_steps")
        warming = self._only_warms_up(trace.settings, steps)
        return self._too_high(trace) or warming or self._too_low(trace)

    def probe(self, subject: "Subject") -> Finding:
        """How far does one step move the policy?"""
        step = subject.one_step()
        kl, rate = step.kl, step.learning_rate
        if rate == 0:
            return self.too_little("the learning rate is 0, see H26 optimizer-not-stepping")
        if not step.tokens.sum():
            return self.too_little("no token was scored before and after the step")
        if kl == 0:
            return self.too_little("the step moved nothing; see H26 and H32")
        moved = f"One step at the rate {rate:.2g} moves the policy by a KL of {kl:.2g} per token"
        if np.isnan(kl):
            moved = f"After one step at the rate {rate:.2g} log-probs are no numbers"
        if not kl <= LARGE_KL and (far := self._too_far(step, moved, subject)):
            return far
        steps = subject.planned_steps
        if steps is None and kl < ENOUGH_KL:
            return self.too_little(
                f"{moved}; {np.ceil(ENOUGH_KL / kl):.0f} steps would show, and how many the run "
                "has is not known (`max_steps`)."
            )
        warming = self._only_warms_up(subject.settings, steps)
        if warming is not None:
            return warming
        if kl > LARGE_KL:
            return self._unsure(step, moved)
        steps = steps or 1
        reach = kl * steps
        low = reach < ENOUGH_KL
        told = f"{moved}; {steps} steps would reach about {reach:.2g}."
        better = subject.fitting_step() if low else None
        hopeless = reach < ENOUGH_KL / SHORT_OF
        return self.found(
            Level.SUSPECT if hopeless else Level.NOTE if low else Level.OK,
            f"{told} That is too little to show.{_tried(better)}" if low else told,
            measured=kl,
            expected=f"1e-4 to 1e-2 a step, and above {ENOUGH_KL} in reach",
            looked_at=int(step.tokens.sum()),
            severity=ENOUGH_KL / max(reach, 1e-12),
            headline=TOO_LOW,
            fix=_advice(better) or MORE_TO_MOVE,
        )

    def _only_warms_up(self, settings: Mapping[str, Any], steps: int | None) -> Finding | None:
        """A warm-up at whose first part the whole run ends."""
        warm = settings.get("warmup_steps") or 0
        schedule = str(settings.get("lr_scheduler_type") or GIVEN).split()[0]
        if not steps or steps < 0 or schedule in NO_WARM_UP or steps > REACHED * warm:
            return None
        return self.found(
            Level.SUSPECT,
            f"The warm-up takes {warm:g} steps and the run has {steps:g}: the rate never gets "
            f"above {steps / warm:.1%} of the one that was asked for.",
            measured=steps / warm,
            expected=f"above {REACHED:.0%} of the rate asked for",
            severity=REACHED * warm / steps,
            headline=WARMS_UP,
            fix="Set {warmup_steps} to a small part of the run, or train for more steps.",
        )

    def _unsure(self, step: "OneStep", moved: str) -> Finding:
        """A step whose size may be that of a few tokens."""
        return self.too_little(
            f"{moved}, of which {step.kl_at_least:.2g} are certain: a few of the "
            f"{step.tokens.sum()} tokens make the rest. More rollouts a batch would tell."
        )

    def _too_far(self, step: "OneStep", moved: str, subject: "Subject") -> Finding | None:
        """One step is certainly larger than any of a healthy run."""
        kl, low = step.kl, step.kl_at_least if np.isfinite(step.kl) else np.inf
        if low <= LARGE_KL:
            return None
        huge = low > HUGE_KL
        better = subject.fitting_step() if huge else None
        found = self.found(
            Level.SUSPECT if huge else Level.NOTE,
            f"{moved}; healthy first steps have a KL of 3e-4 to 0.04.{_tried(better)}",
            measured=kl if np.isfinite(kl) else None,
            expected=f"1e-4 to 1e-2, certainly below {HUGE_KL:g}",
            severity=kl / HUGE_KL if np.isfinite(kl) else 100.0,
            fix=_advice(better) or "Lower {learning_rate}.",
            headline=TOO_HIGH,
        )
        if not huge:
            return found
        # So far away any KL term pulls harder than the reward.
        return replace(found, explains=(*self.explains, "H31"))

    def suspected(self, config: RunConfig) -> Setting | None:
        """The rate in use against the usual one."""
        usual = replace(config, learning_rate=None).rate
        if config.rate == usual:
            return None
        return Setting(
            "learning_rate",
            usual,
            control=f"learning rate {config.rate:g}",
            treated=f"learning rate {usual:g}",
        )

    def _too_high(self, trace: Trace) -> Finding | None:
        """Has the reward fallen, and did the behaviour change out of all proportion?"""
        if not len(trace.rollouts):
            return None
        groups = reward_groups(trace)
        steps = np.unique(groups.step)
        if len(steps) < 3 or groups.span == 0:
            return None
        first = groups.mean[:BEGINNING]
        last = groups.mean[groups.step >= steps[-(len(steps) // 3)]]
        fall = difference_of_means(first, last)
        shifts = [told for told in (_kl(trace), *_shifts(trace)) if told]
        if fall.high > -FALL * groups.span or not shifts:
            return None
        return self.found(
            Level.SUSPECT,
            f"The reward fell by {-fall.value:.2f} against the first {len(first)} groups, while "
            f"{' and '.join(shifts)}: the steps are too large.",
            measured=fall,
            expected="no fall",
            severity=-fall.value / (FALL * groups.span),
            fix="Lower {learning_rate}. " + self.fix,
            headline=TOO_HIGH,
        )

    def _too_low(self, trace: Trace) -> Finding:
        steps = _trained_steps(trace)
        if steps < FEWEST:
            return self.too_little(f"{steps} steps at full rate; {FEWEST - steps} more are needed")
        values = trace.steps["kl"] if "kl" in trace.steps else np.zeros(0)
        known = values[np.isfinite(values)]
        if len(known):
            if known[0] > SOUND_KL:
                return self._away(steps, known)
            if floor := self._floor(trace, known):
                return floor
            kl = mean_of(known[-(len(known) // 3) :])
            text = f"After {steps} steps the KL to the reference is {kl.value:.2g} per token."
            return self._verdict(kl.high < UNMOVED_KL, kl.low > UNMOVED_KL, text, kl)
        changes = {"entropy": _relative_change(trace.steps["entropy"])}
        if "completion_length" in trace.steps:
            changes["completion length"] = _relative_change(trace.steps["completion_length"])
        told = ", ".join(f"{name} {one.value:+.1%}" for name, one in changes.items())
        widest = max(changes.values(), key=lambda one: max(-one.low, one.high))
        return self._verdict(
            max(-widest.low, widest.high) < UNMOVED
            and not _parted(trace)
            and not _paid_otherwise(trace),
            _parted(trace) or any(one.low > 0 or one.high < 0 for one in changes.values()),
            f"Change of behaviour over {steps} steps: {told}.",
            widest,
        )

    def _floor(self, trace: Trace, kl: np.ndarray) -> Finding | None:
        """A small KL that a log has from its first rows on, and that does not grow: what rounding
        makes of two models that are the same. A policy that moves begins at 0 and leaves it."""
        trend = trend_of(trace)
        flat = trend is not None and trend.flat is True and not trend.constant
        if len(trace.rollouts) or not flat or len(kl) < MANY or kl.max() > SOUND_KL:
            return None
        rows = len(kl) // MANY_PARTS
        parts = [float(np.median(part)) for part in (kl[:FIRST], kl, kl[-rows:])]
        change = _relative_change(kl)
        grows = change.high >= GROWS or parts[2] > (1 + GROWS) * parts[1]
        if grows or parts[0] < parts[1] / 2 or not 0 < parts[1] < ENOUGH_KL:
            return None
        return self.found(
            Level.SUSPECT,
            f"The KL to the reference is {parts[0]:.2g} per token in the first {FIRST} rows and "
            f"{parts[2]:.2g} in the last. It does not grow, so it is rounding: the policy has not "
            "moved.",
            measured=change,
            expected="a KL that begins near 0 and grows",
            headline="Your policy does not move.",
            fix="Check that the learning rate is above 0, that the trained weights (adapters) get "
            "gradients, and that the sampler gets these weights.",
        )

    def _away(self, steps: int, kl: np.ndarray) -> Finding:
        """A KL that is large from the start shows a movement only by its change."""
        change = _relative_change(kl)
        text = (
            f"The KL to the reference is {kl[0]:.2g} per token from the start, and changes by "
            f"{change.value:+.0%} over {steps} steps."
        )
        return self._verdict(False, change.low > 0 or change.high < 0, text, change)

    def _verdict(self, still: bool, moves: bool, text: str, measured: Estimate) -> Finding:
        if not still and not moves:
            return self.too_little(f"{text} Twice as many steps are needed.")
        return self.found(
            Level.SUSPECT if still else Level.OK,
            f"{text} The policy has hardly moved." if still else text,
            measured=measured,
            expected=f"a KL above {UNMOVED_KL}, or a change above {UNMOVED:.0%}",
            headline=TOO_LOW,
        )


def _tried(better: "OneStep | None") -> str:
    """What another rate was seen to do."""
    return "" if better is None else f" At {better.learning_rate:.2g} one step has {better.kl:.2g}."


def _advice(better: "OneStep | None") -> str | None:
    """Only a rate whose step was taken is given as a number."""
    return None if better is None else f"Set {{learning_rate}} to {better.learning_rate:.2g}."


def _trained_steps(trace: Trace) -> int:
    """Steps, counted by their share of the highest rate: warm-up hardly counts."""
    every = spacing(trace.steps["step"])
    steps = int(np.sum(trace.steps["step"] > 0) * every)
    if "learning_rate" not in trace.steps:
        return steps
    rate = trace.steps["learning_rate"]
    rate = rate[np.isfinite(rate)]
    return round(every * float((rate / rate.max()).sum())) if len(rate) and rate.max() > 0 else 0


def _relative_change(values: np.ndarray) -> Estimate:
    """Last third against first, as a share of the first."""
    known = values[np.isfinite(values)]
    third = len(known) // 3
    start = float(known[:third].mean()) if third else 0.0
    if start == 0:
        return Estimate(0.0, -np.inf, np.inf, third)
    change = difference_of_means(known[:third], known[-third:], unseen=UNMOVED * abs(start))
    ends = sorted((change.low / start, change.high / start))
    return Estimate(change.value / start, ends[0], ends[1], change.n)


def _kl(trace: Trace) -> str | None:
    """Said where the KL has left its healthy range and began inside it."""
    if "kl" not in trace.steps:
        return None
    kl = trace.steps["kl"][np.isfinite(trace.steps["kl"])]
    last = float(np.median(kl[-max(1, len(kl) // 3) :])) if len(kl) else 0.0
    return f"the KL rose to {last:.2g} per token" if last > BROKEN_KL and kl[0] < SOUND_KL else None


def _shifts(trace: Trace) -> list[str]:
    """What else changed by a factor that no learning explains."""
    told = []
    for name in ("entropy", "completion_length"):
        values = trace.steps[name] if name in trace.steps else np.zeros(0)
        known = values[np.isfinite(values)]
        if len(known) < 3 or known[0] <= 0:
            continue
        factor = float(np.median(known[-(len(known) // 3) :]) / known[0])
        if not 1 / SHIFT <= factor <= SHIFT:
            told.append(f"the {name.replace('_', ' ')} changed by a factor of {factor:.2g}")
    return told


def _paid_otherwise(trace: Trace) -> bool:
    """Whether the reward certainly moves, which a policy that stands still does not make it do."""
    trend = trend_of(trace)
    return trend is not None and (trend.rises or trend.falls)


def _parted(trace: Trace) -> bool:
    """Whether sampler and trainer agree at first and no longer do."""
    if "logprob_gap" not in trace.steps:
        return False
    gap = trace.steps["logprob_gap"]
    known = gap[np.isfinite(gap)]
    return len(known) > 2 and bool(np.median(known[-(len(known) // 3) :]) > known[0] + PARTED)
