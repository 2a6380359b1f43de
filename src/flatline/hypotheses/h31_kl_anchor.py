"""The KL term holds the policy where its pull balances that of the reward.

## What goes wrong
The pull back to the reference grows with the distance, that of the reward does not. At some
distance they cancel: the policy moves at first and then stops, at a KL that is smaller the
larger beta is. Nothing is broken, and nothing is learnt from there on.

## Sign
Beta of at least a tenth of a typical advantage (above one it is H03's), a KL that has left 0 and
then stopped moving, and a reward that is certainly flat: suspected. So is a reward that rose and
has certainly stayed level since the middle of the run, while groups still differ, if beta is at
least three tenths:
the end of learning looks the same under a light beta. Such a beta alone is noted. Healthy: beta
0.06 is 0.08 of a typical advantage (0 of 26 runs, interval 0 to 13 %).

## Probe
The gradient a hundredth of an optimizer step away from the start, split into reward and KL. The
pull of the KL, carried on to one whole step, in units of the reward's: above 1 the anchor holds
before a second step is taken: suspected. It is measured again ten times as far away, and the lesser
of both counts. A pull has grown tenfold there. One that has not even grown fivefold is not a pull
but rounding, as with a small step in bf16: then it is unknown. Healthy in the lab: see `HOLDS`.

## Experiment
Beta in use against 0, or a planted fault against none; matched seeds.

## Fix
Beta 0 or 0.001; or reset the reference now and then (`sync_ref_model`).

## Not to be confused with
H03 kl-divergence: a beta above a typical advantage, a wrong reference, an exploding KL. H24
learning-rate: the KL stays near 0 at any beta. H32 zero-variance-groups: the reward does not pull.

## References
TRL's default was 0.04 and is 0. DAPO and Dr. GRPO leave the term out.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flatline.config import RunConfig
from flatline.hypotheses.arms import without_kl
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import reward_groups
from flatline.hypotheses.logs import setting
from flatline.hypotheses.trend import trend_of
from flatline.hypotheses.weights import kl_in_reward
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

LIGHT, FIRM, HEAVY = 0.1, 0.3, 1.0
"""Beta in units of a typical advantage: from where it may hold, from where it may be what ended a
rise, and from where it is H03's. Healthy: 0.08 with beta 0.06."""
STILL = 1.5
"""The median KL of the last third, in units of the middle third's, below which it stands still. One
that grows with every step is at 1.67."""
LEFT = 1e-4
"""KL of a policy that has moved; below it is H24's."""
FEWEST = 12
"""Steps that can be cut into thirds that mean something."""
HOLDS = 1.0
"""Pull of the KL after one step in units of the reward's. Healthy: 0.12 with beta 0.04."""
GROWS = 5.0
"""What ten times the distance makes of a pull, at least. Rounding: 1 to 3."""


IN_REWARD = "RLOO takes the KL off the reward, so no term of the loss pulls to the reference."


class KlAnchor(Hypothesis):
    id = "H31"
    name = "kl-anchor"
    headline = "The KL penalty holds your policy in place."
    explains = ("H24",)
    meaning = "The policy stops where the pull of the KL penalty balances that of the reward."
    fix = "Set {beta} to 0, or lower it."
    mechanism = "The KL stands still at a level that beta sets; in the other arm it goes on."

    def sign(self, trace: Trace) -> Finding:
        """Does the KL stand still under a beta that can hold it, and the reward with it?"""
        beta = setting(trace, "beta")
        if not beta:
            return self.not_applicable(f"beta is {beta}: there is no KL term.", excluded_by="beta")
        if kl_in_reward(trace.settings):
            return self.not_applicable(IN_REWARD, excluded_by="algorithm")
        step, kl = trace.steps["step"], trace.steps["kl"]
        kl = kl[np.isfinite(kl) & (step > 0)]
        advantage = np.abs(trace.rollouts["advantage"])
        typical = float(np.nanmean(advantage[advantage > 0])) if (advantage > 0).any() else 0.0
        if len(kl) < FEWEST or typical == 0:
            return self.too_little(f"{max(FEWEST - len(kl), 1)} more steps are needed")
        weight = beta / typical
        text = f"Beta is {weight:.2g} of a typical advantage"
        if not LIGHT <= weight <= HEAVY:
            if weight > HEAVY:
                return self.found(Level.UNKNOWN, f"{text}, which is a case for H03.")
            return self.found(
                Level.OK,
                f"{text}, too light to hold.",
                measured=weight,
                expected="below 0.1",
                looked_at=int((advantage > 0).sum()),
            )
        held = _stands(kl) and _reward_stands(trace, weight)
        return self.found(
            Level.SUSPECT if held else Level.NOTE,
            f"{text}; the KL is {np.median(kl[-(len(kl) // 3) :]):.2g} nat per token"
            f"{' and does not change, and neither does the reward' if held else ''}.",
            measured=weight,
            expected=f"below {LIGHT:g}",
            severity=weight / LIGHT,
        )

    def probe(self, subject: "Subject") -> Finding:
        """How hard does the KL pull after one step?"""
        if kl_in_reward(subject.settings):
            return self.not_applicable(IN_REWARD, excluded_by="algorithm")
        pull = subject.kl_pull()
        if pull is None:
            return self.not_applicable("beta is 0: there is no KL term.", excluded_by="beta")
        if not np.isfinite(pull.ratio):
            return self.too_little("the batch has no gradient; see H26 and H32")
        if pull.ratio > HOLDS and pull.growth < GROWS:
            return self.too_little(
                f"{pull.further:g} times as far from the start the KL's gradient is only "
                f"{pull.growth:.2g} times as long: rounding makes it, not the distance"
            )
        found = self.found(
            Level.SUSPECT if pull.ratio > HOLDS else Level.OK,
            f"After one step the KL term would pull {pull.ratio:.2g} times as hard as the reward "
            f"(beta {pull.beta:g}, cosine {pull.cosine:.2f}).",
            measured=pull.ratio,
            expected=f"below {HOLDS:g}",
            severity=pull.ratio / HOLDS,
            looked_at=1,
        )
        # No KL has held anything yet: a rate that is wrong in the first step is so by itself.
        return replace(found, explains=())

    def suspected(self, config: RunConfig) -> Setting | None:
        """Beta against none."""
        return without_kl(config)


def _stands(kl: np.ndarray) -> bool:
    """Whether the KL has left 0 and does not grow from the middle on."""
    third = len(kl) // 3
    middle, last = np.median(kl[third:-third]), np.median(kl[-third:])
    return bool(middle > LEFT and last < STILL * middle)


def _reward_stands(trace: Trace, weight: float) -> bool:
    """From the start, or since the middle where the anchor is firm and there is more to learn. An
    anchor makes no reward one number."""
    trend = trend_of(trace)
    if trend is None or trend.constant:
        return False
    stands = trend.lately.high < trend.smallest
    return trend.flat is True or (weight >= FIRM and stands and _groups_differ(trace))


def _groups_differ(trace: Trace) -> bool:
    """Whether most of the newer half of the groups still have better and worse rollouts."""
    groups = reward_groups(trace)
    newer = groups.step > np.median(groups.step) if groups.n else np.zeros(0, dtype=bool)
    return bool(newer.any() and groups.equal[newer].mean() < 0.5)
