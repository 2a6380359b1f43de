"""The sampler samples with weights from some steps ago.

## What goes wrong
Rollouts that an older policy sampled are trained on as if they were the newest. Where the trainer
computes the old log-probs itself, the ratio starts at 1 and hides it: nothing corrects for the
difference, and each step pulls towards what an older policy did.

## Sign
A run whose first generation serves all of its steps (`num_iterations` taken for the length of the
run) is suspected from its settings alone.

Every rollout names the optimizer steps behind the weights that sampled it. It is behind by
step - 1 - version, and may be so where one generation serves several updates. More than that, in
more than half of the rollouts of two steps or more, is a fault; fewer are noted. A watched loop
does not say how many updates a generation serves, so there its first update counts for all of its
rollouts, and a few that no update moved at first are no news. Rollouts from vLLM and from custom
samplers name no weights, so there it cannot be tested: H06 reads the log-probs.

## Probe
Sample the batch again as the next step would: the rollouts must name that step. What `generate`
drew from the very model that is trained has its weights.

## Experiment
A run with the planted fault (weights delivered every so many steps) against the same without it,
matched seeds. One step behind is common practice and does little harm at small learning rates; harm
grows with the rate.

## Fix
Deliver before every generation (`num_batches_ahead=0` and the like), or correct with the sampler's
own log-probs and bound the delay.

## Not to be confused with
H06 lora-weight-sync: nothing arrives at all, or something else than the weights. H22: the
correction itself drops most tokens.

## References
verifiers `num_batches_ahead` (1 by default: "one step off-policy"). TRL does not record which
weights vLLM sampled a batch with.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.weights import allowed_lag, updates_of_a_generation
from flatline.stats import cluster_mean
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

SEVERAL = 4
"""Planned steps of a run that should sample more than once."""
FEWEST = 2
"""Steps after the first that must have been played: the first cannot be behind."""
MANY = 0.5
"""Share of late rollouts that is no accident. An invariant: a healthy synchronous run has none."""


class StaleSampler(Hypothesis):
    id = "H17"
    name = "stale-sampler"
    headline = "Your sampler uses weights from earlier steps."
    explains = ("H08", "H20")
    meaning = "The policy learns from what an older one did, and nothing corrects for it."
    fix = "Send the weights before every generation, or correct with the sampler's log-probs."
    mechanism = "Rollouts are sampled with older weights; in the other arm with the newest."

    def sign(self, trace: Trace) -> Finding:
        """How far behind are the weights that sampled?"""
        all_of_it = self._one_generation(trace.settings)
        if all_of_it is not None:
            return all_of_it
        version, step = trace.rollouts["weight_version"], trace.rollouts["step"]
        known = np.isfinite(version) & (step > 1)
        steps = np.unique(step[known])
        if len(steps) < FEWEST:
            return self.too_little(
                f"{FEWEST - len(steps)} more steps with weight versions are needed"
            )
        heard = trace.run.get("source") == "watch"
        behind = _behind(step, version, heard=heard)[known]
        allowed = allowed_lag(trace)
        late = behind > allowed
        # Steps are the unit: all rollouts of one are played with the same delivery.
        share = cluster_mean(late.astype(float), step[known])
        told = f"{np.mean(behind):.1f} steps behind on average, {int(behind.max())} at most"
        if not late.any() or (heard and share.value <= MANY):
            return self.found(
                Level.OK,
                f"Rollouts of {len(steps)} steps were sampled {told} ({allowed:.0f} by design).",
                measured=float(behind.max()),
                expected=f"{allowed:.0f} steps behind",
                looked_at=len(steps),
            )
        worst = int(np.argmax(behind))
        return self.found(
            Level.FAULT if share.value > MANY else Level.NOTE,
            f"{share.value:.0%} of the rollouts after step 1 were sampled with weights that are "
            f"too old: {told}.",
            measured=share,
            expected=f"{allowed:.0f} steps behind",
            evidence=[
                Evidence(
                    text=f"sampled with the weights of step {int(version[known][worst])}",
                    step=int(step[known][worst]),
                    rollout=int(trace.rollouts["rollout"][known][worst]),
                )
            ],
            severity=float(np.mean(behind)),
            points_at_cause=True,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do rollouts of the next step name that step?"""
        all_of_it = self._one_generation(subject.settings)
        if all_of_it is not None:
            return all_of_it
        again = subject.play_again()
        if not again.versions.size:
            return self.too_little("the rollouts name no weight version")
        behind = again.version_expected - again.versions
        if behind.max() <= 0:
            return self.found(
                Level.OK,
                f"Rollouts of the next step name its weights (step {again.version_expected}).",
                measured=0.0,
                expected="0 steps behind",
                looked_at=again.versions.size,
            )
        return self.found(
            Level.FAULT,
            f"Rollouts of step {again.version_expected} name the weights of step "
            f"{int(again.versions.min())}.",
            measured=float(behind.max()),
            expected="0 steps behind",
            severity=float(behind.max()),
        )

    def _one_generation(self, settings: Mapping[str, Any]) -> Finding | None:
        """Whether the run ends before anything is sampled a second time."""
        planned, updates = settings.get("max_steps") or 0, updates_of_a_generation(settings)
        if planned < SEVERAL or updates < planned:
            return None
        again = settings.get("num_iterations") or 1
        return self.found(
            Level.SUSPECT,
            f"All {planned} steps of the run train on the completions of one generation: it serves "
            f"{updates:.0f} steps (`num_iterations` {again}).",
            measured=updates,
            expected="1 to 16 steps",
            severity=float(planned),
            headline="Your whole run trains on one batch of completions.",
            fix="Lower `num_iterations`: it is how often each generation is trained on, and not "
            "how long the run is.",
        )


def _behind(step: np.ndarray, version: np.ndarray, *, heard: bool) -> np.ndarray:
    """Updates between the weights that sampled a rollout and those that trained it. A loop that is
    heard names the weights it samples with, so rollouts of one version are one generation, and
    what waits for its turn in that is not old."""
    if not heard:
        return np.asarray(step - 1 - version)
    _, generation = np.unique(version, return_inverse=True)  # those without one are a kind, too
    first = np.full(generation.max() + 1, np.inf)
    np.minimum.at(first, generation, step)
    return np.asarray(first[generation] - 1 - version)
