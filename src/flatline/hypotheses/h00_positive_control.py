"""The stack cannot learn something that it certainly should: which part of it cannot?

## What goes wrong
Some part of the stack between the sampler and the weights is broken, and no hyperparameter will
fix it. "It learns GSM8K" does not prove that it works: format and brevity can be learnt
without seeing the question at all. A positive control must need the pathway under suspicion.

## Sign
None: a trace of the failing run cannot show what would have been learnt from another reward.

## Probe
None that takes seconds; see Experiment.

## Experiment
`flatline checkup TASK --ladder` trains the same setup a few steps for each of four rewards, from
one that needs no context to the whole task: the format alone; a part that needs the question; a
part that needs what the tool returned; the task. Each rung is judged on held-out problems, rollout
by rollout. A rung is climbed when the interval of its gain excludes 0, failed when a gain of 0.05
is excluded, and undecided otherwise. The first failed rung names the subsystem.

## Fix
Look only at the subsystem that the first failed rung needs and the rung below does not: attention
and masks of the prompt, then tool output in the trainer's context, then the reward.

## Not to be confused with
H24 learning-rate: then even the lowest rung fails. H32 zero-variance-groups: a rung whose part is
already at its maximum cannot rise and is left out.

## References
The seeds' library validation (GSM8K as control, recorded as "invalidated, confidence high" on a
stack that hid the question from the trainer). Synthetic control tasks in RL debugging practice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.stats import Estimate

SMALLEST_GAIN = 0.05
"""A rise on held-out problems that a few steps of a healthy run exceed."""
CEILING = 0.97
"""A part that starts above this has no room to rise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One reward of the ladder."""

    part: str
    """Part of the task's reward that is trained on alone."""
    needs: str
    """What the trainer must see for it to be learnt."""
    broken: str
    """Where to look when this is the first rung that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """What became of one rung."""

    rung: Rung
    before: float
    """Held-out value of the part before training."""
    gain: Estimate
    """After minus before, play by play."""

    @property
    def outcome(self) -> str:
        """climbed, failed, undecided, or no room."""
        if self.gain.low > 0:
            return "climbed"
        if self.before > CEILING:
            return "no room"
        return "failed" if self.gain.high < SMALLEST_GAIN else "undecided"


_FORMAT = Rung(
    part="format",
    needs="nothing but the model's own words",
    broken="gradients, optimizer, learning rate, advantages or weight delivery",
)
_TASK = Rung(part="combined", needs="all of it", broken="the task's reward or its data")
RUNGS: dict[str, tuple[Rung, ...]] = {
    "musique": (
        _FORMAT,
        Rung(
            part="retrieval_recall",
            needs="the question",
            broken="how the trainer sees the prompt: attention mask, template, truncation",
        ),
        Rung(
            part="citation",
            needs="what the tool returned",
            broken="how the trainer sees tool output: attention mask, re-tokenisation, limits",
        ),
        _TASK,
    ),
    "gsm8k": (
        _FORMAT,
        Rung(
            part="exact_match",
            needs="the question",
            broken="how the trainer sees the prompt: attention mask, template, truncation",
        ),
    ),
    "toolmath": (
        _FORMAT,
        Rung(
            part="progress",
            needs="the question and what the tool returned",
            broken="how the trainer sees prompt and tool output: attention mask, template",
        ),
        _TASK,
    ),
}
"""Per task, from what needs least to what needs all."""


class PositiveControl(Hypothesis):
    id = "H00"
    name = "positive-control"
    headline = "Your training setup cannot learn even an easy task."
    meaning = "The rung below needs less and was learnt, so the difference between them is broken."
    fix = "Look at what the failed rung needs and the one below does not."

    def judge(self, climbs: Sequence[Climb]) -> Finding:
        """The first rung that fails names the subsystem."""
        evidence = [Evidence(text=_line(climb)) for climb in climbs]
        failed = next((climb for climb in climbs if climb.outcome == "failed"), None)
        if failed is not None:
            return self.found(
                Level.SUSPECT,
                f"The first rung that fails is `{failed.rung.part}`, which needs "
                f"{failed.rung.needs}: {failed.gain}. Look at {failed.rung.broken}.",
                measured=failed.gain,
                expected=f"a gain whose interval excludes 0, above {SMALLEST_GAIN}",
                evidence=evidence,
            )
        undecided = [climb.rung.part for climb in climbs if climb.outcome == "undecided"]
        if undecided:
            return self.too_little(f"{', '.join(undecided)} may or may not have moved; more steps.")
        climbed = sum(climb.outcome == "climbed" for climb in climbs)
        return self.found(
            Level.OK, "Every rung with room was climbed.", evidence=evidence, looked_at=climbed
        )


def _line(climb: Climb) -> str:
    return (
        f"{climb.rung.part} (needs {climb.rung.needs}): {climb.before:.2f}, gain {climb.gain}: "
        f"{climb.outcome}"
    )
