"""Weights do not arrive where they are needed: at the sampler, at the reference, or in the adapter.

## What goes wrong
The sampler has to sample with the newest weights: one that never gets them, or gets the adapter
merged twice, samples from a policy other than the trained one. The reference has to keep the old
ones: with the adapter left on, the KL is 0 whatever happens. And the adapter has to be trainable:
while its B is frozen at zero, nothing moves and no error says so.

## Sign
The sampler: one weight version for all of at least four steps; or log-probs that agree at the first
step and diverge later although no rollout names older weights (mean gap above 1e-3 nat in float32,
0.1 in 16 bits, over the last three recorded steps). If the sampler's log-probs are then those of
the recorded reference up to rounding, or, after prompts that come again, those of the first step,
it never got any weights, which is a fault. If a copy of the model samples in a watched loop and
not one weight of that copy changes over eight steps, that is suspected. Rollouts from vLLM and from
custom samplers name no version, so there only the log-probs can show it.

The reference: policy and reference are the same to the last bit after the weights have changed,
with beta above 0. The adapter: an A that is trained, or held by the optimizer, without its B.

## Probe
Move every trainable weight until the trainer's log-probs shift visibly, sample, restore, sample
again: the sampler must follow there and back. A sampler that returns no log-probs must write other
tokens with moved weights; enough are compared that a healthy one would write the same fewer than
once in 10,000 times. With the adapters moved, the reference must stay. Sampling three times cannot
distinguish a delivery that comes late (H17) from one that never comes.

## Experiment
LoRA against all weights (`peft` on against off), as the seeds propose, matched seeds. Without a
`learning_rate` each arm has the usual one of its kind, since one rate for both would test H24. The
full arm has no adapter to freeze, merge or leave on, and with `sampler_weights` `auto` no copy of
the weights to deliver to; with `copy`, both arms have one delivery, and the comparison shows
nothing. A setup that trains all weights through a copy is compared with one that samples from the
trainer's own (`sampler_weights` `live`), which cannot be stale. A planted fault is compared with
none.

## Fix
Compare a checksum of one delivered tensor on both sides at every delivery, and stamp rollouts with
the version that sampled them. Switch the adapter off in the reference pass, and check it once.

## Not to be confused with
H17 stale-sampler: deliveries arrive, but late. H23 dropout-in-scoring: the gap is noise that is
there in two identical passes. H09, H10, H11, H21: sampler and trainer disagree before any update.
H26 optimizer-not-stepping: gradients arrive and nothing steps. A B that only the optimizer lacks is
both: PEFT makes a frozen B trainable again when it switches the adapter off and on, so it gets
gradients that nothing applies. Where the optimizer holds the A's, the adapter is to blame and H26
is its symptom; where it holds neither, or that was not recorded, H26 is named alone.

## References
TRL issues 2698, 3679, 5188, 6688; vLLM 31326. The seeds' H06 asks whether the reference should get
the adapter's weights ("reference model not updated"): it must not; that would make the KL 0. Their
"KL 1e5" did not come from here but from H09.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Hypothesis, Level, Setting
from flatline.hypotheses.logprobs import (
    at_equal_weights,
    never_left_the_start,
    prefix_spread,
    recorded,
)
from flatline.hypotheses.weights import allowed_lag, names_newest, weights_move
from flatline.trace import Trace
from flatline.trace.settings import is_half

if TYPE_CHECKING:
    from flatline.live.records import Delivery
    from flatline.live.subject import Subject

FEWEST = 4
"""Steps that must have been played before one version for all of them means anything."""
PATIENCE = 8
"""Optimizer steps that a copy may sample with the same weights; some send them every few steps."""
LATE = 3
"""Recorded steps at the end of the run whose gap is looked at."""
APART, APART_BF16 = 1e-3, 0.1
"""Mean gap in nats of a sampler with other weights. Healthy: 1e-6, and below 0.025 in bf16; see
docs/hypotheses.md."""
MOVED = 1e-4
"""Sum of learning rates after which an adapter has visibly moved the log-probs."""
FOLLOWS = 0.2
"""Share of a visible move by which sampler and trainer may differ after it."""
NEGLIGIBLE = 1e-4
"""Chance that a healthy sampler writes the same tokens with moved weights. The number bounds what
it really is from above, and is small beside that of any other false alarm of a checkup."""
NOISE = 0.1
"""Share of the gap that noise of the trainer's own may be. Healthy without dropout: none."""
VIOLENT = 4.0
"""A move after which rounding alone tells sampler and trainer apart."""
VISIBLE = 0.01
"""Nats; a smaller shift of the trainer's own log-probs cannot be followed."""

SAME_ADAPTER = (
    "the reference has the adapter on",
    "Switch the adapter off in the pass that scores the reference.",
)
SAME_MODEL = (
    "the reference is the very model that is trained, so the KL is always 0",
    "Give the trainer a frozen copy of the model that training starts from as its reference.",
)
REFERENCE_MOVES = "Your reference model changes along with your policy."


class LoraWeightSync(Hypothesis):
    id = "H06"
    name = "lora-weight-sync"
    headline = "Your sampler does not get the weights that you train."
    explains = ("H03", "H08", "H17", "H20", "H24", "H26")
    meaning = (
        "The model that is trained is not the one that samples, or not the one it is compared with."
    )
    fix = "Send the weights to the sampler before every generation; compare checksums."
    mechanism = (
        "Weights do not arrive at the sampler, the reference or the adapter; in the other arm they "
        "do."
    )

    def sign(self, trace: Trace) -> Finding:
        """Do the three copies agree where they must, and differ where they must?"""
        found, missing = [], None
        for look in (self._copy, self._adapter, self._reference, self._versions, self._gap):
            try:
                finding = look(trace)
            except NotRecorded as error:
                missing = missing or error
                continue
            if finding is not None and finding.level in ALARMS:
                return finding
            found += [finding] if finding is not None else []
        if missing is not None and not found:
            raise missing
        return found[-1] if found else self.too_little(f"{FEWEST} steps are needed")

    def probe(self, subject: "Subject") -> Finding:
        """Does the sampler follow there and back, and does the reference stay?"""
        reference = subject.reference_gap()
        if reference is not None and reference.moved_gap is not None:
            census = subject.one_step().gradients
            if not census.kinds:
                return self.too_little("no weight of the model is trainable, so none moves")
            held = [k for k, kept in zip(census.kinds, census.in_optimizer, strict=True) if kept]
            if held.count("lora_B") < held.count("lora_A"):
                return self._frozen(held.count("lora_B"), held.count("lora_A"))
            if reference.moved_gap == 0:
                return self.found(
                    Level.FAULT,
                    "The reference moves along with the adapters: the KL is 0 whatever they do.",
                    measured=0.0,
                    expected="above 0",
                    fix="Switch the adapter off in the pass that scores the reference.",
                    headline=REFERENCE_MOVES,
                )
        return self._delivery(subject)

    def suspected(self, config: RunConfig) -> Setting | None:
        """Adapters against all weights; a copy of the weights against the trainer's own."""
        if config.peft:
            return Setting("peft", False, control="LoRA", treated="all weights")
        if config.sampler_weights != "copy":
            return None
        return Setting(
            "sampler_weights",
            "live",
            control="a copy of the weights samples",
            treated="the trainer's own weights sample",
        )

    def _delivery(self, subject: "Subject") -> Finding:
        done = subject.delivery()
        if not np.isfinite(done.visible):
            return self.too_little("no token of the batch shows whether its weights have moved")
        if done.visible < VISIBLE:
            return self.too_little(f"the weights could be moved by {done.visible:.2g} nat only")
        if not np.isfinite([done.gap_before, done.gap_moved, done.gap_restored]).all():
            return self._by_tokens(done)
        told = (
            f"gap {done.gap_before:.2g} before, {done.gap_moved:.2g} moved, "
            f"{done.gap_restored:.2g} restored; the move is worth {done.visible:.2g} nat"
        )
        quiet = APART if is_half(subject.settings) is False else APART_BF16
        limit = max(FOLLOWS * done.visible, quiet)
        worst = max(done.gap_moved, done.gap_restored)
        # What differs for another reason differs more where the distribution is flatter, so a
        # worse gap then shows nothing; one that a move hardly changes shows that it arrived.
        if done.gap_before > quiet and worst > limit:
            return self.too_little(f"sampler and trainer disagree before any move ({told})")
        broken = done.visible > VIOLENT and done.gap_moved < done.visible / 2
        if broken and done.gap_restored <= limit < done.gap_moved:
            return self.too_little(f"every visible move breaks the policy ({told})")
        if worst > limit:
            how = "follow moved weights" if done.gap_moved > limit else "come back"
            return self._stays(f"The sampler does not {how}: {told}.", worst)
        return self.found(
            Level.OK,
            f"The sampler follows moved weights and comes back: {told}.",
            measured=done.gap_moved,
            expected=f"below {limit:.2g}",
            looked_at=len((done.gap_before, done.gap_moved, done.gap_restored)),
        )

    def _by_tokens(self, done: "Delivery") -> Finding:
        """Without log-probs only tokens that stay the same tell, where they cannot do so by chance;
        a sampler with late weights changes them as one with the newest does."""
        chance = done.same_by_chance
        if chance is None:
            return self.too_little("the sampler gives no log-probs")
        if chance < NEGLIGIBLE:
            return self._stays("The sampler gives the same tokens with moved weights.", 1.0)
        likely = f"in up to {chance:.0%} of such samples" if chance >= 0.005 else "now and then"
        return self.too_little(
            "the sampler gives no log-probs, and the same tokens with moved weights, which a "
            f"healthy one does {likely}; longer completions are needed"
        )

    def _stays(self, text: str, gap: float) -> Finding:
        return self.found(
            Level.FAULT, text, measured=gap, expected="as before the move", severity=gap / APART
        )

    def _adapter(self, trace: Trace) -> Finding | None:
        """LoRA: every trained A needs its B."""
        if not trace.settings.get("lora") or not len(trace.weights):
            return None
        names = {str(name) for name in trace.weights["name"]}
        if "in_optimizer" in trace.weights:
            lost = trace.weights["in_optimizer"] == 0
            names -= {str(name) for name in trace.weights["name"][lost]}
        first = sum("lora_A" in name for name in names)
        second = sum("lora_B" in name for name in names)
        return self._frozen(second, first) if second < first else None

    def _frozen(self, second: int, first: int) -> Finding:
        return self.found(
            Level.FAULT,
            f"Of {first} adapted layers only {second} train B, which starts at zero: the adapter "
            "of the others does nothing, and no gradient reaches its A.",
            measured=second / first,
            expected="1",
            severity=100.0,
            fix="Load the adapter with is_trainable=True, and freeze weights by their exact names.",
            headline="Only a part of your adapter is trained.",
        )

    def _reference(self, trace: Trace) -> Finding | None:
        """With beta above 0 the policy must part from the reference."""
        settings = trace.settings
        if not settings.get("beta") or is_half(settings):
            return None  # in 16 bits a small move may round to nothing
        last = int(trace.token_steps[-1]) if len(trace.token_steps) else 0
        moved = np.nansum(trace.steps["learning_rate"][trace.steps["step"] < last])
        if last < FEWEST or moved < MOVED or not weights_move(trace):
            return None
        tokens = trace.tokens([last])
        apart = np.abs(tokens.trainer - tokens.reference)[tokens.trained]
        apart = apart[np.isfinite(apart)]
        if not apart.size or apart.max() > 0:
            return None
        why, fix = SAME_ADAPTER if settings.get("lora") else SAME_MODEL
        return self.found(
            Level.FAULT,
            f"At step {last}, after updates, policy and reference give every one of {apart.size} "
            f"trained tokens the same log-prob: {why}.",
            measured=0.0,
            expected="above 0",
            severity=10.0,
            fix=fix,
            headline=REFERENCE_MOVES,
        )

    def _copy(self, trace: Trace) -> Finding | None:
        """A copy of the watched model that was seen to sample, and its weights."""
        seen = trace.run.get("copy_that_samples")
        if not seen or seen["changes"] or seen["steps"] < PATIENCE:
            return None
        return self.found(
            Level.SUSPECT,
            f"A copy of the model samples, and not one of its weights has changed in "
            f"{seen['steps']} optimizer steps.",
            measured=0.0,
            expected="new weights after a step",
            severity=float(seen["steps"]),
            fix="Look at what delivers the weights: `load_state_dict(..., strict=False)` passes "
            "over names that do not fit. Compare one weight on both sides after it.",
        )

    def _versions(self, trace: Trace) -> Finding | None:
        """One version for all steps is no delivery at all."""
        if "weight_version" not in trace.rollouts:
            return None
        version, step = trace.rollouts["weight_version"], trace.rollouts["step"]
        version, step = version[np.isfinite(version)], step[np.isfinite(version)]
        steps = np.unique(step)
        behind = float(step.max() - 1 - version.max())
        if len(steps) < FEWEST or np.ptp(version) or behind <= allowed_lag(trace) + 1:
            return None
        return self.found(
            Level.FAULT,
            f"All rollouts of {len(steps)} steps were sampled with the weights of step "
            f"{int(version[0])}: the sampler never got new ones.",
            measured=behind,
            expected="0 steps behind",
            evidence=[Evidence(text=f"weight version {int(version[0])}", step=int(step.max()))],
            severity=behind,
        )

    def _gap(self, trace: Trace) -> Finding | None:
        """Agreement at the start, and none later, with no rollout that names older weights."""
        first = at_equal_weights(trace)
        limit = APART if first.exact else APART_BF16
        steps = trace.token_steps
        later = steps[names_newest(trace, steps) & (steps > 1)][-LATE:].tolist()
        if not later:
            return self.too_little("no later step was sampled with the newest weights")
        if first.mean().value > limit:
            return self.too_little("sampler and trainer disagree before any update; see H09 to H23")
        gaps = recorded(trace, later)
        gap = gaps.mean()
        if not gap.n:
            return self.too_little(f"no log-prob from step {later[0]} on is a number")
        told = f"{gap.value:.2g} [{gap.low:.2g}, {gap.high:.2g}] nat from step {later[0]} on"
        if gap.low <= limit:
            return self.found(
                Level.OK,
                f"Sampler and trainer differ by {told}: the weights arrive.",
                measured=gap,
                expected=f"below {limit:g}",
            )
        if _noisy(trace, later, gap.value):
            return self.too_little("the trainer's own log-probs are noisy; see H23")
        start = never_left_the_start(trace)
        if start is not None:
            return self.found(
                Level.FAULT,
                f"The sampler still has the weights of the start: {start}, and the trainer's "
                f"differ by {told}.",
                measured=gap,
                expected=f"below {limit:g}",
                evidence=gaps.worst(trace, gaps.unsure),
                severity=gap.value / limit,
            )
        return self.found(
            Level.SUSPECT,
            f"Sampler and trainer agree at the first step ({first.mean().value:.2g} nat) and "
            f"differ by {told}, although no rollout names older weights.",
            measured=gap,
            expected=f"below {limit:g}",
            evidence=gaps.worst(trace, gaps.unsure),
            severity=gap.value / limit,
        )


def _noisy(trace: Trace, steps: list[int], gap: float) -> bool:
    """Whether dropout may make the gap: equal beginnings are scored differently."""
    spread = prefix_spread(trace, steps)
    if not spread.n:
        return bool((trace.settings.get("lora") or {}).get("dropout"))
    return spread.value > NOISE * gap
