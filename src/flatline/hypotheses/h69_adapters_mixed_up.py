"""There are several adapters, and sampler or scorer uses one that is not the trained one.

## What goes wrong
A model that carries several LoRA adapters (tenants of one server, a frozen copy as reference, one
adapter per task) has one of them active at a time, or names one with every request. A request
without a name, an unknown name, or a switch that was not switched back gives another adapter, or
the base alone, and no error says so. The policy that is trained is then never sampled, or gradients
go into one adapter for what another did.

## Sign
None: which adapter sampled is not recorded. H06 and H20 see that the two disagree.

## Probe
Some rollouts of the batch are scored row by row with each adapter in turn and with none, by the
specification. Whose log-probs are the sampler's, and whose are those that the loss is taken of? A
fault where those of another adapter are five times nearer than those of the one that is trained,
which are more than 0.01 nat off. Costs one forward pass of a few rows for each adapter. Does not
apply with fewer than two adapters; unknown for a server that keeps its adapters to itself.

## Experiment
A planted fault against none, matched seeds; the outcome is the held-out reward.

## Fix
Name the adapter with every request and every pass (`model.set_adapter(name)`, `lora_request`), and
compare one log-prob of sampler and trainer at the start of the run.

## Not to be confused with
H06 lora-weight-sync: there is one adapter, and it does not arrive. H17 stale-sampler: the right
adapter, from some steps ago. H03 kl-divergence: the reference has the wrong weights. H59
delivery-departs: a layer adds something else than its matrices say.

## References
SkyRL pull request 1621 (without a switch before the export, another tenant's adapter would go to
vLLM); lm-evaluation-harness pull request 2433 (with data parallel, requests went to the base);
text-generation-inference issue 2505 (an unknown adapter is answered by the base); TRL pull request
6591 (the base was used instead of the adapter `ref`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level

if TYPE_CHECKING:
    from flatline.live.subject import Subject

APART = 0.01
"""Mean gap in nats to the adapter that is trained, above which another one is looked for. Healthy:
1e-6 in float32; in 16 bits rounding may come to more, and then no other adapter is nearer."""
NEARER = 5
"""How many times nearer another adapter must be."""
WHO = {"sampler": "The sampler uses", "scorer": "The loss is taken of log-probs with"}
"""Who uses an adapter, as a finding begins."""


class AdaptersMixedUp(Hypothesis):
    id = "H69"
    name = "adapters-mixed-up"
    headline = "Your model uses an adapter other than the one you train."
    explains = ("H03", "H06", "H08", "H17", "H20", "H54", "H59")
    meaning = "One adapter is trained for what another one did."
    fix = "Name the adapter with every request and every pass, and switch it back after the pass."
    mechanism = (
        "Log-probs are those of another adapter; in the other arm of the one that is trained."
    )

    def probe(self, subject: "Subject") -> Finding:
        """Whose log-probs are the sampler's and the trainer's?"""
        found = subject.adapter_gaps()
        if not found.trained:
            return self.not_applicable(
                "the model has fewer than two adapters, or trains none.", excluded_by="the model"
            )
        for who, gaps in (("sampler", found.sampler), ("scorer", found.scorer)):
            other = _other(gaps, found.trained)
            if other is not None:
                return self._mixed_up(who, other, gaps, found.trained)
        if not found.sampler:
            return self.too_little("the sampler gives no log-probs to compare with")
        own = max(gaps[_own(gaps, found.trained)] for gaps in (found.sampler, found.scorer))
        return self.found(
            Level.OK,
            f"Of {len(found.scorer) - 1} adapters, `{'`, `'.join(found.trained)}` is trained, and "
            f"no other one is nearer to what samples and scores ({own:.1g} nat off).",
            measured=own,
            expected=f"below {APART:g}",
            looked_at=len(found.scorer),
        )

    def _mixed_up(
        self, who: str, other: str, gaps: Mapping[str, float], trained: tuple[str, ...]
    ) -> Finding:
        own = _own(gaps, trained)
        named = "no adapter" if other == "none" else f"the adapter `{other}`"
        return self.found(
            Level.FAULT,
            f"{WHO[who]} {named}, and `{own}` is trained: its log-probs are {gaps[other]:.1g} nat "
            f"off, those of `{own}` {gaps[own]:.2g}.",
            measured=gaps[own],
            expected=f"below {APART:g}",
            evidence=[Evidence(text=f"with `{name}`: {gap:.2g} nat") for name, gap in gaps.items()],
            severity=gaps[own] / APART,
            proven=True,
        )


def _own(gaps: Mapping[str, float], trained: tuple[str, ...]) -> str:
    """Of the adapters that are trained, the nearest."""
    return min(trained, key=lambda name: gaps[name])


def _other(gaps: Mapping[str, float], trained: tuple[str, ...]) -> str | None:
    """The adapter that is used in place of the one that is trained; None where none is."""
    others = [name for name in gaps if name not in trained]
    if not others:
        return None
    nearest, own = min(others, key=lambda name: gaps[name]), gaps[_own(gaps, trained)]
    return nearest if own > APART and gaps[nearest] * NEARER < own else None
