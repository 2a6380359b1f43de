"""The data is ordered, so the reward curve shows the data and not the policy.

## What goes wrong
Sorted by difficulty and never shuffled, a run meets easy problems first and hard ones later. Its
training reward falls or rises with the order whatever the policy does, and a run that ends early
has never seen the rest. A reward that is multiplied by difficulty adds its own slope: a frozen
policy that is right in 65, 50 and 40 % of problems with 2, 3 and 4 hops shows .65, .75 and .80.

## Sign
The correlation of a problem's hops with the step that samples it. Suspected where it is certainly
above 0.5 in size; shuffled data has 0. Also suspected: the run itself says that it was sorted by
hops. The best reward at each number of hops is reported if it grows with them.

## Probe
The same correlation over the rows that the trainer's sampler will visit. Where hops are not known,
that of the row's number with the step: data that is mixed has no order left.

## Experiment
The order in use (`hops` or `file`) against `shuffled`, or a planted fault against none; matched
seeds. Outcome is the held-out reward, never the training reward, which is what the order bends. A
run at learning rate 0 over the same order must have no slope.

## Fix
Shuffle (`shuffle_dataset=True`, or shuffle the rows before training); log accuracy per hop count,
without any factor, and judge on a fixed held-out set.

## Not to be confused with
H08 evaluation-mismatch: the two differ at the start already. A curriculum on purpose looks the same
and has the same effect on the curve.

## References
The seeds' `prepare_dataset` sorts by `n_hops`, the script sets `shuffle_dataset=False`, and the
reward is multiplied by `n_hops / 2`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.groups import correlation_estimate, reward_groups
from flatline.stats import Estimate
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

ORDERED = 0.5
"""Correlation of hops and step. Healthy: 0, within 0.21 in the lab. False alarms: see
docs/hypotheses.md."""
MOST_STEPS = 1000
"""Steps of the sampler that the probe follows."""


class DataOrder(Hypothesis):
    id = "H44"
    name = "data-order"
    headline = "Your data is sorted, so the reward curve follows its order."
    explains = ("H08",)
    meaning = "The reward curve follows the order of the data, so it cannot show learning."
    fix = "Shuffle the training data; plot accuracy per hop count."
    mechanism = "Hops drift with the steps; in the other arm they do not."

    def sign(self, trace: Trace) -> Finding:
        """Does difficulty drift with the steps?"""
        hops = trace.groups().known("hops").each(lambda rows: rows.mean(axis=-1))
        return self._judge(
            trace.groups().step, hops, _asked_for(trace), _factor(trace), trace.settings
        )

    def probe(self, subject: "Subject") -> Finding:
        """Will difficulty drift with the steps?"""
        steps = subject.settings.get("max_steps") or 0
        order = subject.data_order(min(steps, MOST_STEPS) if steps > 0 else 20)
        if order.hops_N is None:
            return self._by_rows(order.step_N, order.prompt_N)
        asked = (subject.requested or {}).get("order") == "hops"
        return self._judge(order.step_N, order.hops_N, asked, "", subject.settings)

    def suspected(self, config: RunConfig) -> Setting | None:
        """The order of the data against shuffled."""
        if config.order == "shuffled":
            return None
        return Setting(
            "order",
            "shuffled",
            control=f"order `{config.order}`",
            treated="shuffled",
        )

    def _by_rows(self, step: np.ndarray, row: np.ndarray) -> Finding:
        """Whatever order the rows have, a trainer that mixes them takes it away."""
        drift = _correlation(step.astype(float), row.astype(float))
        if len(np.unique(step)) < 2 or max(-drift.low, drift.high) > ORDERED:
            raise NotRecorded("hops of the training data")
        return self.found(
            Level.OK,
            f"The trainer mixes the rows of its data: row and step have a correlation of {drift}.",
            measured=drift,
            expected="0",
        )

    def _judge(
        self,
        step: np.ndarray,
        hops: np.ndarray,
        asked: bool,
        factor: str,
        settings: Mapping[str, Any],
    ) -> Finding:
        known = np.isfinite(hops)
        step, hops = step[known].astype(float), hops[known]
        levels = np.unique(hops).astype(int).tolist()
        if asked:
            return self.found(
                Level.SUSPECT,
                f"The data is sorted by hops; these steps see problems of {_listed(levels)} hops"
                f"{' only' if len(levels) == 1 else ''}. {factor}".strip(),
                expected="shuffled data",
            )
        if len(levels) < 2:
            seen = f"all problems have {_listed(levels)} hops. {factor}".strip()
            if not settings.get("shuffle_dataset"):  # sorted data begins with one level, too
                return self.too_little(seen)
            return self.not_applicable(seen, looked_at=len(hops))
        if len(np.unique(step)) < 2:
            return self.too_little("one step has no order; more steps are needed")
        drift = _correlation(step, hops)
        text = f"Hops and step have a correlation of {drift}. {factor}".strip()
        if drift.low > ORDERED or drift.high < -ORDERED:
            level = Level.SUSPECT
        elif max(-drift.low, drift.high) > ORDERED:
            return self.too_little(f"{text} Twice as many steps are needed.")
        else:
            level = Level.NOTE if factor else Level.OK
        return self.found(
            level,
            text,
            measured=drift,
            expected="0",
            severity=abs(drift.value) / ORDERED,
        )


def _asked_for(trace: Trace) -> bool:
    requested = trace.run.get("requested")
    return isinstance(requested, dict) and requested.get("order") == "hops"


def _factor(trace: Trace) -> str:
    """Whether the best reward is in proportion to the hops, in words."""
    if not len(trace.rollouts) or "reward" not in trace.rollouts:
        return ""
    groups = reward_groups(trace)
    if groups.n == 0:
        return ""
    reward, hops = trace.rollouts["reward"], trace.rollouts["hops"]
    known = np.isfinite(reward) & np.isfinite(hops)
    best = {int(n): float(reward[known & (hops == n)].max()) for n in np.unique(hops[known])}
    rates = [top / n for n, top in best.items() if n > 0]
    if len(rates) < 2 or min(rates) <= 0 or max(rates) / min(rates) > 1.01:
        return ""
    told = ", ".join(f"{top:.3g} at {n}" for n, top in sorted(best.items()))
    return f"The best reward grows in proportion to the hops ({told})."


def _correlation(step: np.ndarray, hops: np.ndarray) -> Estimate:
    if np.ptp(step) == 0 or np.ptp(hops) == 0:
        return correlation_estimate(0.0, len(step))
    return correlation_estimate(float(np.corrcoef(step, hops)[0, 1]), len(step))


def _listed(levels: list[int]) -> str:
    return ", ".join(map(str, levels)) or "no known number of"
