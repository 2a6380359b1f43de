"""Tokens are not drawn as their log-probs say: accepted drafts change the distribution.

## What goes wrong
Speculative decoding keeps the policy's distribution only with the exact rule: accept a draft x with
probability min(1, p(x) / q(x)) and draw again from what is left of p. Rules that accept what is
plausible, that draw again from p itself, or that use draft probabilities other than those the
drafts were drawn with give another distribution, mostly a sharper one. The log-probs that come back
are the policy's, so they agree with the trainer's, no ratio corrects, and no gap shows. Exploration
is lost, and the gradient is one of samples that the policy would not have drawn.

## Sign
None: a token drawn from p has an expected log-prob of minus the entropy of p, and the entropy at
each token is not recorded. H30 reads its mean.

## Probe
The log-prob plus the entropy of each sampled token, on up to 64 rollouts of one batch, scored row
by row: a martingale, whose variance is known whatever the prompts are. Suspected where its sum is
beyond five standard deviations and a tenth of the entropy, and its sign is that of certainly more
than half of the prompts. Costs one forward pass of each row. Unknown where all tokens together have
less than 200 nats of entropy, where a setting cuts tokens off (H21), and where sampler and trainer
disagree on the same tokens by more than a tenth of the entropy: that comes first.

## Experiment
A planted fault against none, matched seeds; the outcome is the held-out reward.

## Fix
Use the exact acceptance rule (`rejection_sample_method` `standard` in vLLM, drafts with their own
probabilities), or turn speculative decoding off for rollouts.

## Not to be confused with
H21 sampling-parameters: settings cut tokens off or change the temperature; where the server gives
log-probs from before that, it looks the same, so look at what is sent first. H20 numeric-mismatch:
log-probs of the same tokens differ. H65 slow-dropped: what is kept of the samples is a selection.

## References
Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318): the exact rule. Medusa (arXiv
2401.10774) and vLLM issue 5015: typical acceptance. SPEC-RL issue 14 (drawn again from p), DeepSpec
issue 31 (drafts from another distribution than the rule takes), 1Cat-vLLM issue 656 (silent at
temperatures above 0), vLLM issue 48296 (speculative decoding for RL).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.stats import cluster_mean

if TYPE_CHECKING:
    from flatline.live.records import Surprise
    from flatline.live.subject import Subject

SHARE = 0.1
"""Of the entropy by which log-probs may be off in the mean. Healthy: 0 in the mean."""
SURE = 5.0
"""Standard deviations of the martingale."""
FEWEST_NATS = 200.0
"""Entropy of all tokens together below which a batch says too little."""
CUTS = {"top_k": (0, -1, None), "top_p": (1, None), "min_p": (0, None)}
"""Settings, and the values with which they cut nothing off."""


class SpeculativeDrafts(Hypothesis):
    id = "H66"
    name = "speculative-drafts"
    headline = "Your sampler does not draw tokens with the probabilities that it reports."
    explains = ("H30", "H34")
    meaning = "What is trained on is a distortion of the policy, and no correction can see it."
    fix = (
        "Turn speculative decoding off for rollouts, or use the exact acceptance rule; send top_p "
        "1 and top_k -1 with every request."
    )
    mechanism = "Tokens are likelier than their entropy says; in the other arm they are as likely."

    def probe(self, subject: "Subject") -> Finding:
        """Are sampled tokens as likely as the entropy of the policy says?"""
        cut = [name for name, kept in CUTS.items() if subject.settings.get(name) not in kept]
        if cut:
            return self.too_little(f"{', '.join(cut)} cut tokens off, which is H21's")
        found = subject.surprise()
        off, entropy = float(found.off_R.sum()), float(found.entropy_R.sum())
        if not entropy >= FEWEST_NATS:
            return self.too_little(f"{FEWEST_NATS:g} nats of entropy in the batch are needed")
        if not found.apart * found.tokens < SHARE * entropy:
            return self.found(
                Level.UNKNOWN,
                f"Sampler and trainer are {found.apart:.2g} nat apart on the same tokens: that "
                "comes first.",
            )
        return self._judged(off / entropy, off / float(np.sqrt(found.variance_R.sum())), found)

    def _judged(self, share: float, sure: float, found: "Surprise") -> Finding:
        prompts = np.unique(found.group_R)
        along = np.bincount(found.group_R, found.off_R)[prompts] * share > 0
        most = cluster_mean(along.astype(float), prompts)
        alarm = abs(sure) > SURE and abs(share) > SHARE and most.low > 0.5
        text = (
            f"Sampled tokens are {abs(share):.0%} {'more' if share > 0 else 'less'} likely than "
            f"the entropy of the policy says ({sure:+.1f} standard deviations; {along.sum()} of "
            f"{len(along)} prompts)."
        )
        if abs(share) > SHARE and not alarm:
            return self.too_little(f"{text} More tokens are needed.")
        return self.found(
            Level.SUSPECT if alarm else Level.OK,
            text,
            measured=share,
            expected=f"within {SHARE:.0%}",
            severity=abs(share) / SHARE,
            looked_at=found.tokens,
        )
