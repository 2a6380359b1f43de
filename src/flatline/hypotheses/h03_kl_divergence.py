"""The KL term is wrong: to the wrong model, of the wrong sign, out of control, or too heavy.

## What goes wrong
The estimate exp(d) - d - 1 with d = reference - policy grows without bound where the reference
finds a token likely that the policy does not: d = 10 already counts 22,000. A few such tokens own
the gradient. They come from a reference that is not the starting policy (adapter left on, other
weights, other kernel, other mask), from dropout, from tool tokens in the loss, or from a policy
that really has left. A KL term of the wrong sign pushes it out. One that is too heavy holds it.

## Sign
- Before the first update the policy is its reference, so the KL of step 1 must be 0: above 0.002 in
  float32 (0.01 in 16 bits; 0.1 if dropout is on while tokens are scored) is a fault. In the log of
  another tool, and with an adapter whose B is not seen to start at 0, it is suspected: a run that
  continues from an adapter may have such a KL on purpose. No other model is suspected if the KL of
  a log begins at a twentieth of what it becomes.
- With the loss `grpo` and one update per batch the advantages cancel and the loss is beta times KL:
  a loss that falls as the KL rises is a fault of sign.
- Later, a median above 1 nat per token in the last third of at least three steps is suspected. A
  log may have the KL of whole answers: that is assumed if the reward rises at a KL that no token
  could have.
- Where the reference has weights of its own: changed between all steps, and never half a step
  behind the policy: suspected.
- A beta that is larger than a typical advantage wins as soon as a token has moved by 1 nat: it is
  suspected if after eight steps the reward does not rise and the KL stays below (advantage /
  beta)².

## Probe
Policy minus reference on one batch: while every LoRA B is zero, each token must give 0. Then beta
against the advantages of the batch.

## Experiment
Beta in use against beta 0, matched seeds, all else equal; where a fault of the KL term is planted,
with the fault against without it. If the reward still does not rise with beta 0, the KL was a
symptom: look for what explains it before tuning beta.

## Fix
Take the reference from the same weights, kernel and mask as the policy. With rewards that can be
verified, beta 0 is a fair choice.

## Not to be confused with
H09 loss-mask-as-attention, H02 token-masking and H23 dropout-in-scoring all make the KL explode or
start above 0; each shows its own, surer evidence. H06 lora-weight-sync: KL exactly 0 for ever. H24
learning-rate: a policy that was thrown out in one step, or that hardly moves at any beta.

## References
TRL and verifiers use the same estimator. arXiv 2506.09477 and 2512.21852 on KL terms. The seeds
recorded KL 1e5 with beta 0.04, set beta 0 and marked H03 "partially validated": the explosion was
real, but a symptom. Their normal range of "0-10" is too wide (healthy runs stay below 0.3 nat per
token), and the formula that they suspected of being backwards is not.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import without_kl
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import EQUAL, reward_rises
from flatline.hypotheses.kl_unit import BROKEN, kl_per_token, of_answers
from flatline.hypotheses.logs import imported, rows_in_words
from flatline.hypotheses.weights import adapter_started_at_zero, kl_in_reward, updates_once
from flatline.rollout.record import Author
from flatline.trace import Trace
from flatline.trace.settings import is_half
from flatline.trace.tokens import UNKNOWN_AUTHOR

if TYPE_CHECKING:
    from flatline.live.subject import Subject

START, START_BF16 = 2e-3, 1e-2
"""KL per token before any update. An invariant: healthy runs have 0; kernels that differ between
policy and reference give up to 1e-3, in bf16 a little more."""
FEWEST = 3
"""Steps above `BROKEN`, and steps that a sign of the KL term is read from (twice as many)."""
OPPOSED = -0.9
"""Correlation of loss and KL. Healthy: above 0.9 once the KL is larger than the loss's noise."""
TIMES_BETA = (0.3, 30.0)
"""Slope of loss on KL over beta, less its sign; a loss that other noise moves is far outside."""
VISIBLE = 1e-3
"""KL per token that must have been reached before its part in the loss can be seen."""

STAYED = 0.25
"""Share of a run that must have been near its reference to go back to."""
LEFT_SLOWLY = 3
"""Rows near the reference of a policy that its updates took away; one that is far at the second may
be compared in another way."""
MOSTLY = 0.5
"""Share of steps with a KL below 0; k1, the log-ratio itself, is below 0 now and then."""
HEAVY = 1.0
"""Beta in units of the mean |advantage|: the loss then weighs 1 nat more than what is to be learnt.
Usual: 0 to 0.1. False alarms: see docs/hypotheses.md."""
START_DROPOUT = 0.1
"""The KL at step 1 where dropout is on while tokens are scored, and the reference is scored without
it or with another draw. Noise of 0.3 nat a token, as dropout of 0.1 in attention makes, is a KL of
0.05; another model is rarely that near."""
SYNCED_STEPS = 4
"""Steps after each of which the reference must have come after."""
HELD_STEPS = 8
"""Steps after which healthy runs of the lab have left (KL 0.009 to 0.02 at beta 0.02 and 0.04)."""

NEAR = 0.05
"""Share of its later KL that a policy has at step 1, where it began at its reference."""

_FROM_ANSWERS = (
    ", if the log has it for whole answers, as a rising reward and the length of answers suggest"
)
WRONG_SIGN = "The KL penalty has the wrong sign: it pushes your policy away."
OTHER_MODEL = "The KL penalty compares your policy with a different model."


class KlDivergence(Hypothesis):
    id = "H03"
    name = "kl-divergence"
    headline = "The KL penalty, not the reward, decides where your policy goes."
    meaning = "The KL term, not the reward, decides where the policy goes."
    fix = "Start policy and reference from the same model; set {beta} to 0 to see what is left."
    mechanism = (
        "The KL term is not 0 at the start, of the wrong sign, out of control or too heavy; in the "
        "other arm it is none of these, or gone."
    )

    def sign(self, trace: Trace) -> Finding:
        """Is the KL 0 at the start, of the right sign, and bounded?"""
        beta = trace.settings.get("beta")
        if beta == 0 and "kl" not in trace.steps:
            return self.not_applicable("beta is 0, so there is no KL term.", excluded_by="beta")
        if beta is not None and beta < 0:
            return self.found(
                Level.FAULT,
                f"beta is {beta:g}: the KL term pushes the policy away from its reference.",
                measured=float(beta),
                expected="0 or more",
                headline=WRONG_SIGN,
            )
        kl, step = kl_per_token(trace), trace.steps["step"]
        # Overflow of the estimate is an explosion; a step without KL is not one.
        known = ~np.isnan(kl)
        kl, step = kl[known], step[known]
        if not len(kl):
            return self.too_little("no step has a KL that is a number")
        first = kl[step == 1]
        allowed = START if is_half(trace.settings) is False else START_BF16
        if trace.settings.get("dropout"):
            allowed = START_DROPOUT
        if first.size and first[0] > allowed and not _began_near(trace, kl):
            return self._start(trace, float(first[0]), allowed)
        return (
            self._follows(trace)
            or self._sign_of_term(trace, beta)
            or self._holds(trace, kl)
            or self._size(trace, kl, float(first[0]) if first.size else None)
        )

    def probe(self, subject: "Subject") -> Finding:
        """Is every token's gap 0 while the adapters are untrained?"""
        gap = subject.reference_gap()
        if gap is None:
            return self.not_applicable(
                "beta is 0, and there is no adapter to switch off.", excluded_by="beta"
            )
        if not np.isfinite(gap.gap_T).any():
            return self.too_little(
                "no trained token of the batch has a log-prob; another batch is needed"
            )
        with np.errstate(over="ignore"):
            kl_T = np.exp(-gap.gap_T) + gap.gap_T - 1
        kl = float(np.nanmean(kl_T))
        allowed = START if is_half(subject.settings) is False else START_BF16
        if kl <= allowed or gap.untrained is False:
            weight = _weight(subject.settings.get("beta"), subject.batch.advantage_R)
            if weight >= HEAVY and not kl_in_reward(subject.settings):
                return self._heavy(weight, "It will hold the policy where it starts.")
            return self.found(
                Level.OK,
                f"Policy and reference differ by a KL of {kl:.2g} per token.",
                measured=kl,
                expected="0 before the first update",
                looked_at=int(np.isfinite(gap.gap_T).sum()),
            )
        worst = np.argsort(-kl_T)[:3]
        return self.found(
            Level.FAULT if gap.untrained else Level.SUSPECT,
            f"The KL to the reference is {kl:.3g} per token before any update; it must be 0.",
            measured=kl,
            expected=f"below {allowed:g}",
            evidence=[
                Evidence(
                    text=f"{subject.trace.text(int(gap.ids_T[i]))!r}: policy minus reference "
                    f"{gap.gap_T[i]:+.2f}",
                    rollout=int(gap.rollout_T[i]),
                )
                for i in worst
            ],
            severity=kl / allowed,
            headline=OTHER_MODEL,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The beta in use against 0."""
        return without_kl(config)

    def _start(self, trace: Trace, kl: float, allowed: float) -> Finding:
        if (trace.settings.get("lora") or {}).get("starts_at_random"):
            return self._at_random(trace, kl, allowed)
        # The base model may be the reference of a run that goes on from an adapter, on purpose.
        goes_on = trace.settings.get("lora") and not adapter_started_at_zero(trace)
        may_be_meant = imported(trace) or bool(goes_on)
        open_end = ", or the run goes on from an adapter" if may_be_meant else ""
        return self.found(
            Level.SUSPECT if may_be_meant else Level.FAULT,
            f"The KL at step 1 is {kl:.3g} per token, before any update: the reference is not the "
            f"model that the policy starts from, or it is scored another way{open_end}.",
            measured=kl,
            expected=f"0 (below {allowed:g})",
            evidence=_worst(trace, 1),
            severity=kl / allowed,
            headline=OTHER_MODEL,
        )

    def _at_random(self, trace: Trace, kl: float, allowed: float) -> Finding:
        return self.found(
            Level.SUSPECT,
            f"The KL at step 1 is {kl:.3g} per token, before any update, and the adapter was made "
            "with `init_lora_weights=False`: both of its matrices begin with random numbers, so "
            "the policy does not start as its base.",
            measured=kl,
            expected=f"0 (below {allowed:g})",
            evidence=_worst(trace, 1),
            severity=kl / allowed,
            headline="Your adapter starts at random and changes the model before the first step.",
            fix="Leave `init_lora_weights` at True: B then begins at zero, and the adapter adds "
            "nothing until it is trained.",
        )

    def _follows(self, trace: Trace) -> Finding | None:
        """A reference that changes at every step and is never as much as half a step behind."""
        seen = trace.run.get("reference")
        if seen is None or not seen["looked"] == seen["near"] == seen["moved"] >= SYNCED_STEPS:
            return None
        return self.found(
            Level.SUSPECT,
            f"Before each of {seen['looked']} steps the reference had other weights than before "
            "the last one, and was less than half a step behind the policy: the KL compares the "
            "policy with itself.",
            measured=float(seen["near"]),
            expected="a reference that stays behind",
            severity=1 / NEAR,
            fix="Sync the reference rarely, or with a small weight for the policy: "
            "`ref_model_mixup_alpha` is the weight of the policy, and not of the old reference.",
            headline="Your reference follows the policy, so the KL penalty holds nothing.",
            points_at_cause=True,
        )

    def _sign_of_term(self, trace: Trace, beta: float | None) -> Finding | None:
        """Where the loss is beta times KL and nothing else, it must rise with it.

        Also asked of the first half alone: a policy that such a term has broken has a noisy loss.
        """
        plain = trace.settings.get("loss_type") == "grpo" and updates_once(trace.settings)
        if not (beta and plain and "loss" in trace.steps):
            return None
        loss, kl = trace.steps["loss"], trace.steps["kl"]
        known = np.isfinite(loss) & np.isfinite(kl)
        loss, kl = loss[known], kl[known]
        parts = (len(kl), len(kl) // 2)
        return next((f for n in parts if (f := self._turned(loss[:n], kl[:n], beta))), None)

    def _turned(self, loss: np.ndarray, kl: np.ndarray, beta: float) -> Finding | None:
        if len(kl) < 2 * FEWEST or kl.max() < VISIBLE or not np.ptp(loss) or not np.ptp(kl):
            return None
        opposed = float(np.corrcoef(loss, kl)[0, 1])
        slope = opposed * loss.std() / kl.std() / beta
        if opposed > OPPOSED or not TIMES_BETA[0] < -slope < TIMES_BETA[1]:
            return None
        return self.found(
            Level.FAULT,
            f"The loss falls as the KL rises (correlation {opposed:.2f} over {len(kl)} steps), "
            "although it is beta times KL: the KL term has the wrong sign.",
            measured=opposed,
            expected="near +1",
            severity=float(kl[-1] / VISIBLE),
            headline=WRONG_SIGN,
        )

    def _holds(self, trace: Trace, kl: np.ndarray) -> Finding | None:
        """Is beta too heavy, and does the policy stay where it was?"""
        if kl_in_reward(trace.settings):  # beta then weighs sums over a completion, not tokens
            return None
        if "advantage" not in trace.rollouts or len(kl) < HELD_STEPS:
            return None
        weight = _weight(trace.settings.get("beta"), trace.rollouts["advantage"])
        typical = float(np.median(kl[-(len(kl) // 3) :]))
        if weight < HEAVY or typical > weight**-2 or reward_rises(trace):
            return None
        return self._heavy(
            weight, f"The KL stays at {typical:.2g} nat per token, and the reward does not rise."
        )

    def _heavy(self, weight: float, then: str) -> Finding:
        found = self.found(
            Level.SUSPECT,
            f"Beta is {weight:.2g} times a typical advantage, so the KL term wins once a token has "
            f"moved by {1 / weight:.2g} nat. {then}",
            measured=weight,
            expected=f"below {HEAVY:g}, usually 0 to 0.1",
            severity=weight / HEAVY,
            headline="The KL penalty outweighs your reward.",
            fix="Set {beta} to 0, or lower it.",
        )
        return replace(found, explains=(*found.explains, "H31"))  # why it holds the policy

    def _size(self, trace: Trace, kl: np.ndarray, start: float | None) -> Finding:
        if not len(kl):
            return self.too_little("a logged KL that is a number is needed")
        late = kl[-max(len(kl) // 3, FEWEST) :]
        typical = float(np.median(late))
        told = rows_in_words(len(late), trace.steps["step"])
        if len(kl) >= FEWEST and typical > BROKEN:
            step = trace.steps["step"][np.argmax(np.nan_to_num(trace.steps["kl"], nan=-1.0))]
            return self.found(
                Level.SUSPECT,
                f"The KL is {typical:.3g} nat per token in the last {told} (largest "
                f"{kl.max():.3g}, at step {int(step)}{_already(kl, start is not None)}).",
                measured=typical,
                expected=f"below {BROKEN:g}",
                evidence=_worst(trace, int(step)),
                severity=typical / BROKEN,
                headline="Your policy has drifted far away from its reference model.",
                fix=_way_back(trace, start),
            )
        if len(kl) < FEWEST and start is None:
            return self.too_little(f"{len(kl)} steps have a KL; {FEWEST - len(kl)} more are needed")
        started = "" if start is None else f"{start:.2g} at step 1 and "
        below = len(kl) >= FEWEST and (kl < 0).mean() > MOSTLY
        if below and not kl_in_reward(trace.settings):  # RLOO logs k1, which may be
            return self.found(
                Level.NOTE,
                f"The KL is {started}{typical:.2g} nat per token in the last {told}, below 0 at "
                f"{(kl < 0).sum()} of {len(kl)} steps. A KL is not, and the usual estimate (k3) "
                "cannot be: this is another estimate, or its sign is turned.",
            )
        return self.found(
            Level.OK,
            f"The KL is {started}{typical:.2g} nat per token in the last {told}"
            f"{_FROM_ANSWERS if of_answers(trace) else ''}.",
            measured=typical,
            expected=f"below {BROKEN:g}",
            looked_at=len(kl),
        )


def _began_near(trace: Trace, kl: np.ndarray) -> bool:
    """Whether the KL of a log, whose unit or noise may be its own, was next to nothing at first
    beside what it became. That of another model is there from the start."""
    late = kl[-max(len(kl) // 3, 1) :]
    return imported(trace) and len(kl) >= FEWEST and bool(kl[0] < NEAR * np.median(late))


def _way_back(trace: Trace, start: float | None) -> str | None:
    """What to do where the policy was near for a while, or at least at first; else None."""
    kl, step = trace.steps["kl"], trace.steps["step"]
    far = np.flatnonzero(kl > BROKEN)
    early = far[0] < STAYED * len(kl)
    if early and start is None:
        return None
    if early and far[0] < LEFT_SLOWLY:
        return (
            f"The KL is {start:.2g} at step 1, so both are the same model. Ask "
            "`flatline.checkup(trainer)`: it tells a learning rate that is too high from log-probs "
            "that are computed without what the sampler read."
        )
    if early:  # it began at its reference, and its updates took it away
        return "Lower {learning_rate} or raise {beta}, and start again."
    left = int(step[far[0]])
    return f"Go back to a checkpoint before step {left}, lower {{learning_rate}}, and go on."


def _already(kl: np.ndarray, start_seen: bool) -> str:
    """Whether a log begins with a policy that has left: it may never have been near."""
    return f"; {kl[0]:.3g} in the first row" if not start_seen and kl[0] > BROKEN else ""


def _weight(beta: float | None, advantages: np.ndarray) -> float:
    """Beta in units of the mean advantage of rollouts that have one."""
    size = np.abs(advantages)
    size = size[np.isfinite(size) & (size > EQUAL)]
    return float(beta / size.mean()) if beta and len(size) else 0.0


def _worst(trace: Trace, step: int) -> list[Evidence]:
    """The three trained tokens of a step that add most to its KL."""
    try:
        tokens = trace.tokens([step])
        gap = np.where(tokens.trained, tokens.reference - tokens.trainer, np.nan)
        author = tokens.author
    except NotRecorded:
        return []
    worst = np.argsort(-np.nan_to_num(gap, nan=-np.inf))[:3]
    return [
        Evidence(
            text=f"{trace.text(tokens.ids[i])!r}, written by the {_author(author[i])}: reference "
            f"{tokens.reference[i]:.2f}, policy {tokens.trainer[i]:.2f}",
            step=step,
            rollout=int(trace.rollouts["rollout"][tokens.rollout_rows[tokens.row[i]]]),
        )
        for i in worst
        if np.isfinite(gap[i])
    ]


def _author(code: int) -> str:
    return "unknown" if code == UNKNOWN_AUTHOR else Author(int(code)).name.lower()
