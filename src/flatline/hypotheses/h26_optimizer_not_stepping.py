"""Gradients do not become changes of the weights: nothing is trained, and no error says so.

## What goes wrong
The optimizer holds other tensors than those that get gradients, the rate is 0, or no gradient
arrives: the adapter was made after the optimizer, weights were frozen by name, re-entrant gradient
checkpointing cut the graph, a gradient scaler skips every step. The loss is logged as usual.

## Sign
Steps with a learning rate above 0 in which a float32 tensor has a gradient and does not change at
all; a rate of 0 at every step; gradients that are exactly 0 although advantages are not; gradients
that are no number. Each is exact. A tensor in half precision may stand still because its updates
are rounded away, which is noted. Without recorded weights, a KL that grew from 0 shows that they
move.

## Probe
One optimizer step on one batch, undone afterwards: every trainable tensor must be in the optimizer,
get a gradient and change. While the B of LoRA is 0 the gradient of A is 0, which is expected.

## Experiment
None is needed: the invariant holds or it does not. To find the culprit, switch off gradient
checkpointing, then LoRA, and look again.

## Fix
Build the optimizer after the adapter. With gradient checkpointing use
`gradient_checkpointing_kwargs={"use_reentrant": False}` or `model.enable_input_require_grads()`.

## Not to be confused with
H24 learning-rate: the weights change, but too little to matter. H32 zero-variance-groups: gradients
are 0 because every advantage is. H06 lora-weight-sync: the trainer's weights move and the sampler
never gets them; an adapter whose B is frozen also has gradients of 0 and is that hypothesis' case.

## References
TRL issues 3089 and 3150 (checkpointing without `enable_input_require_grads`); mlx-lm-lora issue 55
(max |lora_B| is 0 after training); transformers issue 42489; open-unlearning issue 178.
"""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.groups import EQUAL
from flatline.trace import Trace
from flatline.trace.frames import Frame

if TYPE_CHECKING:
    from flatline.subject import Subject
    from flatline.subject.records import GradientCensus

FEWEST = 2
"""Steps that must agree: a gradient scaler may skip one step of a healthy run."""
MANY = 0.5
"""Share of the trainable elements without a gradient that is no accident of the architecture."""
MOVED_KL = 1e-4
"""KL to the reference that only a policy that moved has. Healthy runs: 1e-3 to 0.3."""
HALF = ("bfloat16", "float16", "torch.bfloat16", "torch.float16")
"""Precisions in which an update may be rounded away."""


class OptimizerNotStepping(Hypothesis):
    id = "H26"
    name = "optimizer-not-stepping"
    explains = ("H24",)
    meaning = "Weights that do not change cannot learn, whatever else is tuned."
    fix = (
        "Create the optimizer after the adapter, from parameters with requires_grad; with gradient "
        "checkpointing set use_reentrant=False."
    )

    def sign(self, trace: Trace) -> Finding:
        """Do gradients arrive, and do weights change?"""
        return (
            self._no_rate(trace)
            or self._no_number(trace)
            or (self._weights(trace) if len(trace.weights) else self._without_weights(trace))
        )

    def probe(self, subject: "Subject") -> Finding:
        """Does one step change every weight that it should?"""
        step = subject.one_step()
        census = step.gradients
        if not np.any(np.abs(step.advantage) > EQUAL):
            return self.too_little("every advantage of the batch is 0; another batch would do")
        if step.learning_rate == 0:
            return self._alarm("The configured learning rate is 0.", 0.0)
        lost = ~census.in_optimizer
        if lost.any():
            return self._alarm(
                f"The optimizer lacks {lost.sum()} of {len(lost)} trainable tensors.",
                float(lost.mean()),
                [census.names[at] for at in np.flatnonzero(lost)],
            )
        due = _due(census)
        if census.total_norm == 0 or not due.any():
            return self._alarm("No trainable tensor gets a gradient.", 0.0)
        if not np.any(step.update_norms[due] > 0):
            return self._alarm("One step at the configured rate changes no weight.", 0.0)
        dead = due & (census.norms == 0)
        still = due & (census.norms > 0) & (step.update_norms == 0)
        changed = float(np.mean(step.changed_share_of[due]))
        text = (
            f"One step changes {changed:.1%} of the elements of {due.sum()} tensors; "
            f"{dead.sum()} have no gradient and {still.sum()} one that changes nothing."
        )
        level = Level.SUSPECT if (dead | still).sum() >= MANY * due.sum() else Level.OK
        if level is Level.OK and ((dead | still).any() or changed < MANY):
            level = Level.NOTE
        names = [census.names[at] for at in np.flatnonzero(dead | still)]
        return self.found(
            level, text, measured=changed, expected="nearly 100 %", evidence=_named(names)
        )

    def _no_rate(self, trace: Trace) -> Finding | None:
        if "learning_rate" not in trace.steps:
            return None
        rate = trace.steps["learning_rate"]
        known = rate[np.isfinite(rate)]
        if len(known) < FEWEST or known.any():
            return None
        return self._alarm(f"The learning rate is 0 at all {len(known)} steps.", 0.0)

    def _no_number(self, trace: Trace) -> Finding | None:
        if "grad_norm" not in trace.steps:
            return None
        broken = _not_numbers(trace.steps, "grad_norm")
        recorded = len(broken) - trace.steps.arrow("grad_norm").null_count
        if broken.sum() < FEWEST or broken.sum() < MANY * recorded:
            return None
        return self._alarm(
            f"The gradient is no number at {broken.sum()} of {recorded} steps.",
            float(broken.sum() / recorded),
        )

    def _weights(self, trace: Trace) -> Finding:
        table = trace.weights
        step, update = table["step"], table["update_norm"]
        names = table["name"]
        grad = table["grad_norm"] if "grad_norm" in table else np.full(len(step), np.nan)
        active = np.isin(step, _active_steps(trace)) & _looked_at(table)
        steps = len(np.unique(step[active]))
        if steps < FEWEST:
            return self.too_little(
                f"weights were recorded at {steps} steps with a rate and advantages; "
                f"{FEWEST - steps} more would do"
            )
        # While B of LoRA is 0, in the first step, the gradient of A is 0 in a healthy run.
        late = active & (step > step[active].min())
        size, half = _sizes(table), _in_half(table)
        still = _always(names, active & ~(grad == 0), update == 0)
        dead = _always(names, late & np.isfinite(grad), grad == 0)
        lost = {name for name in still if not half[name]}
        if lost:
            return self._alarm(
                f"{len(lost)} of {len(size)} trainable tensors have a gradient and did not change "
                f"in {steps} steps with a learning rate above 0.",
                _share(lost, size),
                sorted(lost),
            )
        if dead and _share(dead, size) > 1 - 1e-9:
            return self._alarm(
                f"Every gradient is exactly 0 in {steps} steps whose advantages are not.",
                0.0,
                sorted(dead),
            )
        return self._moving(steps, size, dead | still)

    def _moving(self, steps: int, size: dict[str, float], unmoved: set[str]) -> Finding:
        share = _share(unmoved, size)
        text = f"{len(size) - len(unmoved)} of {len(size)} trainable tensors move ({steps} steps)."
        if unmoved:
            text += f" {share:.0%} of the elements get no gradient, or one that is rounded away."
        level = Level.SUSPECT if share >= MANY else Level.NOTE if unmoved else Level.OK
        return self.found(
            level, text, measured=1 - share, expected="all", evidence=_named(sorted(unmoved))
        )

    def _without_weights(self, trace: Trace) -> Finding:
        if "kl" in trace.steps:
            kl = trace.steps["kl"]
            known = kl[np.isfinite(kl)]
            if len(known) > 1 and known.max() > max(MOVED_KL, 5 * known[0]):
                return self.found(
                    Level.OK,
                    f"The policy moves: its KL to the reference grew from {known[0]:.2g} to "
                    f"{known.max():.2g}.",
                    measured=float(known.max()),
                    expected="above 0",
                )
        if "grad_norm" in trace.steps and "zero_std_share" in trace.steps:
            known = trace.steps["grad_norm"][trace.steps["zero_std_share"] < 1]
            known = known[np.isfinite(known)]
            if len(known) >= FEWEST and not known.any():
                return self.found(
                    Level.SUSPECT,
                    f"The gradient is exactly 0 at all {len(known)} steps in which rewards differ "
                    "inside a group.",
                    measured=0.0,
                    expected="above 0",
                )
        raise NotRecorded("weights.update_norm")

    def _alarm(self, text: str, measured: float, names: list[str] | None = None) -> Finding:
        return self.found(
            Level.FAULT,
            text,
            measured=measured,
            expected="every trainable tensor changes",
            evidence=_named(names or []),
        )


def _active_steps(trace: Trace) -> np.ndarray:
    """Steps that had something to learn from and a rate to learn it with."""
    steps = np.unique(trace.weights["step"])
    if "learning_rate" in trace.steps:
        rate = trace.steps["learning_rate"]
        steps = steps[~np.isin(steps, trace.steps["step"][rate == 0])]
    if "advantage" in trace.rollouts:
        told = np.abs(trace.rollouts["advantage"]) > EQUAL
        if "trained_tokens" in trace.rollouts:
            told &= trace.rollouts["trained_tokens"] > 0
        at = trace.rollouts["step"]
        # With several passes over one generation only the first step names its rollouts.
        steps = steps[np.isin(steps, at[told]) | ~np.isin(steps, at)]
    return steps


def _looked_at(table: Frame) -> np.ndarray:
    """A process that holds no part of a sharded tensor has seen nothing of it."""
    return table["sampled"] > 0 if "sampled" in table else np.ones(len(table), dtype=bool)


def _always(names: np.ndarray, where: np.ndarray, what: np.ndarray) -> set[str]:
    """Tensors for which `what` holds at all of at least `FEWEST` steps in `where`."""
    known, index = np.unique(names[where].astype(str), return_inverse=True)
    times = np.bincount(index, minlength=len(known))
    held = np.bincount(index, what[where], minlength=len(known))
    return {str(name) for name in known[(times >= FEWEST) & (held == times)]}


def _sizes(table: Frame) -> dict[str, float]:
    size = table["size"] if "size" in table else np.ones(len(table))
    return dict(zip(map(str, table["name"]), np.nan_to_num(size, nan=1.0).tolist(), strict=True))


def _in_half(table: Frame) -> dict[str, bool]:
    dtype = table["dtype"] if "dtype" in table else np.full(len(table), None)
    return {str(name): kind in HALF for name, kind in zip(table["name"], dtype, strict=True)}


def _share(names: set[str], size: dict[str, float]) -> float:
    return sum(size[name] for name in names) / max(sum(size.values()), 1.0)


def _not_numbers(frame: Frame, column: str) -> np.ndarray:
    """Recorded values that are NaN or infinite; what was not recorded is neither."""
    found = frame.arrow(column)
    return np.asarray(pc.invert(pc.is_finite(found)).fill_null(False), dtype=bool)


def _due(census: "GradientCensus") -> np.ndarray:
    """Tensors that must have a gradient now."""
    waiting = np.array([kind == "lora_A" for kind in census.kinds], dtype=bool)
    return ~waiting if census.lora_untrained else np.ones(len(waiting), dtype=bool)


def _named(names: list[str]) -> list[Evidence]:
    return [Evidence(text=f"`{name}` does not move") for name in names[:3]]
