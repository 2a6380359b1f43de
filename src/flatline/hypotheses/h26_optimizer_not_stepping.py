"""Gradients do not become changes of the weights: nothing is trained, and no error says so.

## What goes wrong
The optimizer holds other tensors than those that get gradients, the rate is 0, or no gradient
arrives: the adapter was made after the optimizer, weights were frozen by name, re-entrant gradient
checkpointing cut the graph, an adapter stays merged after sampling (the forward pass then bypasses
its matrices), a gradient scaler skips every step. The loss is logged as usual.

## Sign
Exact:

- steps with a learning rate above 0 in which a float32 tensor has a gradient and does not change at
  all;
- a rate of 0 at every step, or over the last quarter of them;
- gradients that are exactly 0 although advantages are not;
- gradients that are not numbers, at half of the steps or at all of the last ones; the finding says
  what grew many times over before;
- in a watched loop, gradients that a step used and the next one adds to, as a rule: a fault;
- in a watched loop, gradients of sampled rows that are cleared before a step uses them (`zero_grad`
  before every backward pass of several) at three quarters of the steps. Not if other passes bring
  the same rows to the step, if weights changed in between, or if other gradients are put in place.

Less certain:

- A tensor that no gradient reaches while others get one (a vision tower that sees only text, an
  adapter on an unused part) is noted, and suspected if such tensors hold half of the elements.
- A tensor in half precision may stay unchanged because its updates are rounded away: noted.
- If all gradients are below 1e-8 an element, and times the rate below the last digit of the
  weights, the finding names them and not the optimizer; one tensor of such a gradient is noted.

If nothing of an adapter moves, PEFT's layers say whether it is merged while the loss is computed.
Without recorded weights, a KL that grew from 0 shows that they move.

## Probe
One optimizer step on one batch, undone afterwards: something must be trainable, and every trainable
tensor must be in the optimizer, get a gradient and change. An adapter that is to be trained must
not be merged in the pass that follows sampling. While the B of LoRA is 0 the gradient of A is 0,
which is expected.

## Experiment
`gradient_checkpointing` on against off, which is where gradients are lost most often, or a planted
fault against none; matched seeds. The invariant holds or it does not, so one step shows the
mechanism; the reward shows what it cost.

## Fix
Build the optimizer after the adapter. Take an adapter that was merged for sampling out again
(`unmerge_adapter()`) before the loss. With gradient checkpointing use
`gradient_checkpointing_kwargs={"use_reentrant": False}` or `model.enable_input_require_grads()`.

## Not to be confused with
H24 learning-rate: the weights change, but too little to matter. H32 zero-variance-groups: gradients
are 0 because every advantage is. H06 lora-weight-sync: the trainer's weights move and the sampler
never gets them. If the optimizer holds A of an adapter and not B, that is H06, and this is its
symptom (if it was not recorded what the optimizer holds, the two cannot be separated, and this one
is named).

## References
TRL issues 3089 and 3150 (checkpointing without `enable_input_require_grads`); mlx-lm-lora issue 55
(max |lora_B| is 0 after training); transformers issue 42489; open-unlearning issue 178.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Setting
from flatline.hypotheses.column_movement import exploded
from flatline.hypotheses.groups import EQUAL
from flatline.hypotheses.logs import not_numbers
from flatline.hypotheses.trend import thirds
from flatline.hypotheses.weights import (
    FEWEST_STEPS,
    active_steps,
    always,
    in_half,
    looked_at,
    share_of,
    sizes,
)
from flatline.trace import Trace
from flatline.trace.frames import Frame
from flatline.trace.rows import plain

if TYPE_CHECKING:
    from flatline.live.records import GradientCensus
    from flatline.live.subject import Subject

MANY = 0.5
"""Share of the trainable elements without a gradient that is no accident of the architecture."""
MOVED_KL = 1e-4
"""KL to the reference that only a policy that moved has. Healthy runs: 1e-3 to 0.3."""


CLEARED = "rows_cleared"
"""What a watch calls the rows whose gradient no step used."""
KEPT = "gradients_kept"
"""What it calls a step whose gradients were added to those of the step before."""
FEWEST_CLEARED, MOST = 3, 0.75
"""Steps, and share of all steps, at which that is no step skipped on purpose. Healthy: 0."""
EPSILON = 1e-8
"""Adam's, below which a gradient shortens its step. Healthy: 5300 times as much and more."""
LAST_DIGIT = 2.0**-24
"""Share of a float32 number below which an addition is rounded away."""
BROKEN = {"grad_norm": "gradient norm", "loss": "loss"}
"""What has no number where training breaks, and what it is called."""
LASTING = 4
"""Steps at the end without a number, after which none comes: a gradient scaler skips fewer."""
LONG = 0.25
"""Share of a run without a rate that is no end of a schedule: those come to 0 at the last step."""


class OptimizerNotStepping(Hypothesis):
    id = "H26"
    name = "optimizer-not-stepping"
    headline = "Your optimizer does not change all the weights it should train."
    explains = ("H24",)
    meaning = "Weights that do not change cannot learn, whatever else is tuned."
    fix = (
        "Create the optimizer after the adapter, from parameters with requires_grad; with gradient "
        "checkpointing set use_reentrant=False."
    )
    mechanism = "Gradients do not change the weights; in the other arm every weight moves."

    def sign(self, trace: Trace) -> Finding:
        """Do gradients arrive, and do weights change?"""
        return (
            self._no_rate(trace)
            or self._no_number(trace)
            or self._cleared(trace)
            or self._kept(trace)
            or (self._weights(trace) if len(trace.weights) else self._without_weights(trace))
        )

    def probe(self, subject: "Subject") -> Finding:
        """Does one step change every weight that it should?"""
        step = subject.one_step()
        census = step.gradients
        if not census.names and census.frozen:
            return self._alarm(
                "No weight of the model is trainable.",
                0.0,
                fix="Check that the adapter is in the model (`model.print_trainable_parameters()`),"
                " and that nothing freezes its weights afterwards.",
            )
        merged = self._merged(subject.trace, "")
        if merged is not None:
            return merged
        if step.learning_rate == 0:
            return self._alarm("The configured learning rate is 0.", 0.0)
        if not len(step.advantage) and census.total_norm == 0:
            return self._alarm(
                "No token of the batch carries loss, so no tensor gets a gradient.",
                0.0,
                fix="Find what leaves every completion out of the loss: mask_truncated_completions,"
                " or the mask of your own rollout function.",
            )
        if len(step.advantage) and not np.any(np.abs(step.advantage) > EQUAL):
            return self.too_little("every advantage of the batch is 0; another batch is needed")
        if not np.isfinite(census.total_norm):
            return self.too_little(
                "the gradient of the batch is not a number; another batch is needed"
            )
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
            level,
            text,
            measured=changed,
            expected="nearly 100 %",
            evidence=_named(names),
            looked_at=int(due.sum()),
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """Gradient checkpointing against none."""
        if not config.gradient_checkpointing:
            return None
        return Setting(
            "gradient_checkpointing",
            False,
            control="gradient checkpointing",
            treated="no gradient checkpointing",
        )

    def _no_rate(self, trace: Trace) -> Finding | None:
        if "learning_rate" not in trace.steps:
            return None
        rate, step = trace.steps["learning_rate"], trace.steps["step"]
        known, step = rate[np.isfinite(rate)], step[np.isfinite(rate)]
        if len(known) < FEWEST_STEPS:
            return None
        if not known.any():
            return self._alarm(
                f"The learning rate is 0 at all {len(known)} steps.",
                0.0,
                fix="Set a learning rate, and look at the scheduler: its warm-up may outlast the "
                "run.",
            )
        ended = int(np.flatnonzero(known)[-1]) + 1
        without = len(known) - ended
        if without < max(FEWEST_STEPS, LONG * len(known)) or _may_be_rounded(known):
            return None
        return self._alarm(
            f"The learning rate is 0 from step {int(step[ended])} on: at {without} of {len(known)} "
            f"steps.{_reward_until(trace, float(step[ended]))}",
            without / len(known),
            headline="Your learning rate is 0 long before the end, so nothing more is trained.",
            fix="Look at the scheduler: it was given fewer steps than the run has.",
        )

    def _no_number(self, trace: Trace) -> Finding | None:
        name = next((name for name in BROKEN if name in trace.steps), None)
        if name is None:
            return None
        recorded = plain(pc.is_valid(trace.steps.arrow(name)))
        broken = not_numbers(trace.steps, name)[recorded]
        last = int(np.flatnonzero(~broken)[-1]) if not broken.all() else -1
        for_good = len(broken) - last - 1 >= LASTING
        if broken.sum() < FEWEST_STEPS or not (for_good or broken.sum() >= MANY * len(broken)):
            return None
        step = trace.steps["step"][recorded]
        first, since = float(step[broken][0]), float(step[last + 1]) if for_good else math.nan
        lasting = (
            " and at all from there on" if first == since else f" and at all from {since:g} on"
        )
        return self._alarm(
            f"The {BROKEN[name]} is NaN or infinite at {broken.sum()} of {len(broken)} steps, "
            f"first at step {first:g}{lasting if for_good else ''}.{exploded(trace, first)}",
            float(broken.sum() / len(broken)),
            headline=f"Your training breaks at step {since:g}: from there on its {BROKEN[name]} is "
            "no number."
            if for_good and last >= 0
            else "Your gradients are NaN or infinite.",
            expected="a number at every step",
            fix="Look at the first step without a number: its rewards, its longest completion, "
            "its largest log-ratio. Go back to a checkpoint from well before it. In fp16 use bf16 "
            "instead.",
        )

    def _kept(self, trace: Trace) -> Finding | None:
        """Gradients that are still there when the next step's are added."""
        if KEPT not in trace.metric_names:
            return None
        kept = np.nan_to_num(trace.metric(KEPT))[1:]  # the first step has none before it
        if kept.sum() < max(FEWEST_CLEARED, MOST * len(kept)):
            return None
        return self.found(
            Level.FAULT,
            f"Before {int(kept.sum())} of {len(kept)} steps gradients were added to those "
            "that the step before had used: each step goes along the sum of all until then.",
            measured=float(kept.mean()),
            expected="0",
            headline="Your gradients are never cleared.",
            fix="Call `optimizer.zero_grad()` once for each `optimizer.step()`, before the first "
            "backward pass or after the step.",
            proven=True,
        )

    def _cleared(self, trace: Trace) -> Finding | None:
        """Gradients of rows that no step used, in a loop that is watched."""
        if CLEARED not in trace.metric_names:
            return None
        lost, kept = np.nan_to_num(trace.metric(CLEARED)), np.nan_to_num(trace.metric("rows_kept"))
        at = np.flatnonzero(lost > 0)
        if len(at) < max(FEWEST_CLEARED, MOST * len(lost)):
            return None
        share = float(lost[at].sum() / (lost[at] + kept[at]).sum())
        return self.found(
            Level.FAULT,
            f"At {len(at)} of {len(lost)} steps gradients were cleared after they were computed "
            f"and before the optimizer used them: {share:.0%} of the completions reach no update.",
            measured=share,
            expected="0",
            headline="Your gradients are cleared before the optimizer uses them.",
            fix="Call `zero_grad` once for each `optimizer.step()`: not before every backward "
            "pass, where gradients are to add up.",
            evidence=[
                Evidence(
                    text=f"of {int(lost[one] + kept[one])} rows, the gradient of {int(lost[one])} "
                    "was cleared",
                    step=int(trace.steps["step"][one]),
                )
                for one in at[:2]
            ],
            proven=True,
        )

    def _weights(self, trace: Trace) -> Finding:
        table = trace.weights
        step, update = table["step"], table["update_norm"]
        grad = table["grad_norm"] if "grad_norm" in table else np.full(len(step), np.nan)
        active = np.isin(step, active_steps(trace)) & looked_at(table) & np.isfinite(update)
        steps = len(np.unique(step[active]))
        if steps < FEWEST_STEPS:
            return self.too_little(
                f"weights were recorded at {steps} steps with a rate and advantages; "
                f"{FEWEST_STEPS - steps} more are needed"
            )
        # While B of LoRA is 0, in the first step, the gradient of A is 0 in a healthy run.
        late = active & (step > step[active].min())
        size, half = sizes(table), in_half(table)
        without = (grad == 0) | _no_gradient(table, step, grad)
        still = always(table, active & ~without, update == 0)
        dead = always(table, late & (np.isfinite(grad) | without), without)
        lost = {name for name in still if not half[name]}
        merged = self._merged(
            trace,
            f" {len(lost | dead)} of {len(size)} trainable tensors did not "
            f"change in {steps} steps.",
        )
        if merged is not None and share_of(lost | dead, size) >= MANY:
            return merged
        faint = lost & _too_small(trace, active & ~without)
        if faint and _all_small(table, active):
            return self._faint(faint, steps, size)
        lost -= faint
        if lost:
            known = np.isfinite(grad[active & np.isin(table["name"], sorted(lost))]).any()
            have = "have a gradient and " if known else ""
            return self._alarm(
                f"{len(lost)} of {len(size)} trainable tensors {have}did not change in {steps} "
                "steps with a learning rate above 0.",
                share_of(lost, size),
                sorted(lost),
            )
        if dead and share_of(dead, size) > 1 - 1e-9:
            return self._alarm(
                f"Every gradient is exactly 0 in {steps} steps whose advantages are not.",
                0.0,
                sorted(dead),
            )
        return self._moving(steps, size, dead | still)

    def _merged(self, trace: Trace, more: str) -> Finding | None:
        """An adapter that is part of the base where it should be trained."""
        seen = trace.run.get("adapter_merged")
        if not seen:
            return None
        found = self._alarm(
            f"{seen['layers']} of {seen['of']} layers with an adapter are merged into the base "
            f"while the loss of step {seen['step']} is computed: the pass bypasses the adapter, "
            f"which gets no gradient.{more}",
            seen["layers"] / seen["of"],
            headline="Your adapter is merged into the base while it should be trained.",
            fix="Take the adapter out again after sampling (`model.unmerge_adapter()`), before the "
            "loss.",
        )
        return replace(found, proven=True)

    def _faint(self, names: set[str], steps: int, size: dict[str, float]) -> Finding:
        """Nothing is wrong with the optimizer: it is given nothing."""
        alarm = self._alarm(
            f"{len(names)} of {len(size)} trainable tensors did not change in {steps} steps: an "
            "update by their gradients is smaller than the last digit of the weights.",
            share_of(names, size),
            sorted(names),
            headline="Your gradients are too small to change the weights.",
            fix="Look for what makes the loss vanish: advantages that cancel, a loss divided or "
            "scaled twice, log-probs that were detached.",
        )
        return replace(alarm, explains=(*alarm.explains, "H25", "H27"))

    def _moving(self, steps: int, size: dict[str, float], unmoved: set[str]) -> Finding:
        share = share_of(unmoved, size)
        text = f"{len(size) - len(unmoved)} of {len(size)} trainable tensors move ({steps} steps)."
        if unmoved:
            text += f" {share:.0%} of the elements get no gradient, or one that is rounded away."
        level = Level.SUSPECT if share >= MANY else Level.NOTE if unmoved else Level.OK
        return self.found(
            level,
            text,
            measured=1 - share,
            expected="all",
            evidence=_named(sorted(unmoved)),
            looked_at=len(size),
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
                    looked_at=len(known),
                )
        if "grad_norm" in trace.steps and "zero_std_share" in trace.steps:
            known = trace.steps["grad_norm"][trace.steps["zero_std_share"] < 1]
            known = known[np.isfinite(known)]
            if len(known) >= FEWEST_STEPS and not known.any():
                return self.found(
                    Level.SUSPECT,
                    f"The gradient is exactly 0 at all {len(known)} steps in which rewards differ "
                    "inside a group.",
                    measured=0.0,
                    expected="above 0",
                )
        raise NotRecorded("weights.update_norm")

    def _alarm(
        self,
        text: str,
        measured: float,
        names: list[str] | None = None,
        *,
        fix: str | None = None,
        headline: str | None = None,
        expected: str = "every trainable tensor changes",
    ) -> Finding:
        return self.found(
            Level.FAULT,
            text,
            measured=measured,
            expected=expected,
            evidence=_named(names or []),
            fix=fix,
            headline=headline,
        )


def _typical(table: Frame) -> np.ndarray:
    """Size of a typical element of each gradient."""
    if "grad_norm" not in table or "size" not in table:
        return np.full(len(table), np.inf)
    return np.asarray(table["grad_norm"] / np.sqrt(np.maximum(table["size"], 1)))


def _too_small(trace: Trace, where: np.ndarray) -> set[str]:
    """Tensors whose gradients are below Adam's epsilon, and times the rate below the last digit of
    a typical weight: no optimizer moves them."""
    table = trace.weights
    if "norm" not in table or "learning_rate" not in trace.steps:
        return set()
    grad, weight = _typical(table), table["norm"] / np.sqrt(np.maximum(table["size"], 1))
    rates = trace.steps["learning_rate"]
    rate = float(rates[np.isfinite(rates)].max(initial=0.0))
    return always(table, where, (grad < EPSILON) & (rate > 0) & (rate * grad < LAST_DIGIT * weight))


def _all_small(table: Frame, active: np.ndarray) -> bool:
    """Whether the gradient as a whole is that small: one tensor alone may get rounding for one, as
    the bias of keys does."""
    grad, size = table["grad_norm"][active], table["size"][active]
    return bool(np.sqrt(np.nansum(grad**2) / max(np.nansum(size), 1)) < EPSILON)


def _reward_until(trace: Trace, step: float) -> str:
    """How the reward of a log went while there was a rate, and where it is since."""
    if len(trace.rollouts) or "reward" not in trace.steps:
        return ""
    reward, before = trace.steps["reward"], trace.steps["step"] < step
    with_rate = thirds(reward[before], trace.steps["step"][before])
    since = reward[~before & np.isfinite(reward)]
    if with_rate is None or not len(since):
        return ""
    return (
        f" The reward goes from {with_rate.early.mean():.3g} to {with_rate.late.mean():.3g} while "
        f"there is a rate (first and last third), and is {since.mean():.3g} since."
    )


def _may_be_rounded(rate: np.ndarray) -> bool:
    """Whether a logger's rounding may have made the zeros: then the last rate before them is the
    least that it can write, a 1 in its last digit."""
    above = rate[rate > 0]
    last = float(above[-1])
    return bool(last == above.min() and f"{last:.6e}".startswith("1.000000"))


def _no_gradient(table: Frame, step: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """Tensors that no gradient reached: nothing was recorded of theirs, while others have one."""
    if "grad_norm" not in table:
        return np.zeros(len(step), dtype=bool)
    missing = plain(pc.is_null(table.arrow("grad_norm")))
    return np.asarray(missing & np.isin(step, step[np.isfinite(grad)]))


def _due(census: "GradientCensus") -> np.ndarray:
    """Tensors that must have a gradient now. What a tensor of zeros beside it multiplies, as B of
    LoRA does with A, has none before that one has moved."""
    beside = {part for at in np.flatnonzero(census.zero) for part in _parents(census.names[at])}
    near = np.array([not beside.isdisjoint(_parents(name)) for name in census.names], dtype=bool)
    return np.asarray(~(near & ~census.zero & (census.norms == 0)))


def _parents(name: str) -> set[str]:
    """The modules just around a tensor: `q` of `q.lora_A.default.weight`."""
    return {name.rsplit(".", cut)[0] for cut in (2, 3) if name.count(".") >= cut}


def _named(names: list[str]) -> list[Evidence]:
    return [Evidence(text=f"`{name}` does not move") for name in names[:3]]
