"""Updates are smaller than the last digit of the weights that they should change.

## What goes wrong
Weights that are trained in bf16 without a copy in float32 have three decimal digits. Adam's step is
about the learning rate; added to a weight of 0.02, anything below 6e-5 is rounded away. At a rate
of 1e-6 one step moves 2 % of the weights, at 1e-5 16 %, at 1e-4 88 %.

## Sign
Recorded weights: of the elements of tensors that move at all and have a gradient, the share that a
step changes, over the last third of the steps. Certainly below one half is suspected, whatever the
type is called; noted where all weights are trained in half precision, as some do with full
fine-tuning at 1e-6, and the reward certainly rises. Embeddings are left out, since most of their
rows have no gradient. Healthy in float32: all elements (0 of 26 runs, interval 0 to 13 %); no
healthy run in pure bf16 was recorded.

## Probe
One optimizer step on one batch: the same share. From LoRA's B, which starts at 0, nothing can be
rounded away in the first step; a recorded run shows it later.

## Experiment
A run with the planted fault against the same without it, matched seeds. flatline itself keeps what
it trains in float32, so there is no setting to change.

## Fix
Keep trained weights in float32: PEFT's `autocast_adapter_dtype=True` (its default), an optimizer
with a master copy (DeepSpeed bf16, `fp32` parameters with autocast), or stochastic rounding.

## Not to be confused with
H26 optimizer-not-stepping: whole tensors do not change. H24 learning-rate: all elements move, too
little. H18 merge-rounding: the trainer's weights move, the sampler's copy does not.

## References
PEFT's documentation of `autocast_adapter_dtype`. By simulation a LoRA B in bf16 stalls at about 300
to 500 times the learning rate.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.groups import mean_of, reward_rises
from flatline.hypotheses.weights import active_steps, in_half, looked_at
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

HALF = 0.5
"""Share of the elements that a step changes. Healthy in float32: 1.0 in all 26 runs."""
NOTED = 0.9
"""Share below which it is worth a note."""
FEWEST = 3
"""Steps that a mean is taken over."""
SPARSE = ("embed", "lm_head", "wte")
"""Parts of names of tensors of which most rows have no gradient."""
ADAPTER = "lora_"
"""In names of tensors of an adapter, which is small enough for float32."""


class RoundedUpdates(Hypothesis):
    id = "H25"
    name = "rounded-updates"
    headline = "Your updates are rounded away before they are stored."
    explains = ("H24",)
    meaning = "Most of what is learnt is rounded away before it is stored."
    fix = (
        "Keep the trained weights in float32 (in PEFT `autocast_adapter_dtype=True`), or a float32 "
        "copy that the updates are added to."
    )
    mechanism = "Steps leave most elements as they were; in the other arm they change all."

    def sign(self, trace: Trace) -> Finding:
        """Which share of the elements does a step change?"""
        step, share = trace.weights["step"], trace.weights["changed_share"]
        size = np.nan_to_num(trace.weights["size"], nan=1.0)
        names, named = trace.weights.coded("name")
        dense = np.array([_is_dense(str(name)) for name in names], dtype=bool)[named]
        used = (
            dense
            & (size > 0)
            & (share > 0)
            & np.isin(step, active_steps(trace))
            & looked_at(trace.weights)
        )
        steps = np.unique(step[used])
        late = steps[-max(FEWEST, len(steps) // 3) :]
        if len(late) < FEWEST:
            return self.too_little(
                f"{FEWEST - len(late)} more steps with recorded weights are needed"
            )
        here = used & np.isin(step, late)
        index = np.searchsorted(late, step[here])
        means = np.bincount(index, share[here] * size[here]) / np.bincount(index, size[here])
        found = mean_of(means)
        kinds = _kinds(trace, here)
        worst = np.flatnonzero(here)[np.argsort(share[here], kind="stable")[:2]]
        level = Level.NOTE if found.high < NOTED else Level.OK
        if found.high < HALF and not (_by_design(trace, here) and reward_rises(trace)):
            level = Level.SUSPECT
        return self.found(
            level,
            f"A step changes {found.value:.0%} of the elements of the tensors that move ({kinds}, "
            f"last {len(late)} steps).",
            measured=found,
            expected="nearly 100 %",
            evidence=[
                Evidence(text=f"`{names[named[at]]}`: {share[at]:.0%} of its elements")
                for at in (worst if found.high < NOTED else ())
            ],
            severity=HALF / max(found.value, 1e-3),
        )

    def probe(self, subject: "Subject") -> Finding:
        """Which share of the elements does one step change?"""
        step = subject.one_step()
        census = step.gradients
        dense = np.array([_is_dense(name) for name in census.names], dtype=bool)
        moved = dense & (census.norms > 0) & (step.changed_share_of > 0)
        if not moved.any() or step.learning_rate == 0:
            return self.too_little("the step moves nothing; see H26 and H32")
        share = float(np.average(step.changed_share_of[moved], weights=census.sizes[moved]))
        fresh = " From a B of 0 nothing can be lost yet." if census.lora_untrained else ""
        return self.found(
            Level.SUSPECT if share < HALF else Level.NOTE if share < NOTED else Level.OK,
            f"One step changes {share:.0%} of the elements of {moved.sum()} tensors.{fresh}",
            measured=share,
            expected="nearly 100 %",
            severity=HALF / max(share, 1e-3),
            looked_at=int(moved.sum()),
        )


def _is_dense(name: str) -> bool:
    return not any(part in name for part in SPARSE)


def _by_design(trace: Trace, here: np.ndarray) -> bool:
    """Whether weights of the model itself are trained in half precision, and no adapter."""
    names, named = trace.weights.coded("name")
    half = in_half(trace.weights)
    used = [str(names[at]) for at in np.unique(named[here])]
    return all(half[name] and ADAPTER not in name.lower() for name in used)


def _kinds(trace: Trace, here: np.ndarray) -> str:
    if "dtype" not in trace.weights:
        return "type unknown"
    kinds, index = trace.weights.coded("dtype")
    return ", ".join(sorted(str(kinds[at]) for at in np.unique(index[here])))
