"""What was found out about one hypothesis, and what the journal keeps of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flatline.errors import FlatlineError
from flatline.experiment import Outcome, Result
from flatline.experiment.runs import folder_of
from flatline.hypotheses.base import Hypothesis, Level
from flatline.investigation.plans import name_of
from flatline.investigation.setup import AS_IT_IS, Setup
from flatline.stats import UNKNOWN
from flatline.trace.importers import open_log
from flatline.verdict import Confidence, Mechanism, Presence, Ruling, Verdict

Runs = Mapping[int, Outcome]
"""Control runs by their seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """One hypothesis, tested."""

    verdict: Verdict
    """The answer."""
    plan: dict[str, Any]
    """What was registered, as JSON; of a hypothesis that needed no experiment, what was asked."""
    result: dict[str, Any]
    """Runs and looks, as JSON."""
    traces: dict[str, Path]
    """Where each run was recorded, by `arm-seed`."""
    change: str = ""
    """What to change in the user's script; empty where nothing was validated, or no script is."""

    def curves(self) -> dict[str, dict[str, Any]]:
        """Raw curves of every run: the training reward of each step, the held-out reward."""
        return {key: found for key, path in self.traces.items() if (found := _curve(path))}


def concluded(result: Result, folder: Path) -> Conclusion:
    """What an experiment came to."""
    return Conclusion(
        verdict=result.verdict,
        plan=result.plan.to_json(),
        result=result.to_json(folder),
        traces={f"{run.arm}-{run.seed}": run.trace for run in result.runs if run.trace},
    )


def observed(
    hypothesis: Hypothesis, setup: Setup, verdict: Verdict, *, asked: str, runs: Runs
) -> Conclusion:
    """What needed no experiment: the control runs alone, or no run at all."""
    control = setup.control
    plan = {
        "version": 1,
        "name": name_of(hypothesis, setup),
        "hypothesis": hypothesis.id,
        "question": "Is it there at all?",
        "mechanism": asked,
        "arms": [control.to_json()],
        "registered": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    rows = [_row(hypothesis.id, setup, seed, run) for seed, run in runs.items()]
    return Conclusion(
        verdict=verdict,
        plan=plan,
        result={"version": 1, "runs": rows, "looks": []},
        traces={
            f"{AS_IT_IS}-{seed}": folder_of(control, seed, setup.runs) / run.trace
            for seed, run in runs.items()
        },
    )


def ladder_verdict(found: Mapping[str, Any], setup: Setup) -> Verdict:
    """The positive control: validated means that the stack failed it."""
    presence = {Level.OK: Presence.ABSENT, Level.UNKNOWN: Presence.UNKNOWN}.get(
        found["level"], Presence.PRESENT
    )
    ruling = {
        Presence.PRESENT: Ruling.VALIDATED,
        Presence.ABSENT: Ruling.INVALIDATED,
        Presence.UNKNOWN: Ruling.INCONCLUSIVE,
    }[presence]
    steps = " ".join(f"{one['text']}." for one in found["evidence"])
    return Verdict(
        hypothesis=found["hypothesis"],
        ruling=ruling,
        confidence=Confidence.LOW if ruling is Ruling.INCONCLUSIVE else Confidence.MEDIUM,
        effect=UNKNOWN,
        smallest_effect=setup.smallest_effect,
        alpha=setup.alpha,
        reason=found["text"],
        would_change="The same ladder on other seeds, or with more steps a rung.",
        settled=True,
        mechanism=Mechanism(control=presence, treated=None, direct=True, text=steps),
    )


def _row(code: str, setup: Setup, seed: int, run: Outcome) -> dict[str, Any]:
    """A control run, as the result of an experiment lists it."""
    sight, measured = run.findings.get(code), run.measured(setup.outcome)
    return {
        "arm": AS_IT_IS,
        "role": "control",
        "seed": seed,
        "status": "finished",
        "value": measured and measured.value,
        "before": measured and measured.before,
        "after": measured and measured.after,
        "seconds": run.seconds,
        "level": sight and sight.level,
        "text": sight.text if sight else "",
    }


def _curve(path: Path) -> dict[str, Any] | None:
    try:
        steps = open_log(path).steps
        number = steps["step"]
    except FlatlineError:  # a run that was moved away has no curve, and its numbers stand
        return None
    columns = ("reward", "heldout_reward", "kl", "grad_norm")
    found = {name: steps[name] for name in columns if name in steps}
    trained = number > 0
    curve: dict[str, Any] = {
        name: _numbers(column[trained]) for name, column in found.items() if name != columns[1]
    }
    if columns[1] in found:
        held = found[columns[1]]
        curve["heldout"] = [
            [int(step), round(float(value), 4)]
            for step, value in zip(number, held, strict=True)
            if np.isfinite(value)
        ]
    return curve


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Four digits are more than a curve shows; JSON has neither NaN nor infinity."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]
