"""How far healthy runs stay from the thresholds: the figures of docs/hypotheses.md.

    flatline bench --only 'calibration.*' --keep-traces      trains the healthy setups (hours)
    python benchmarks/calibration.py --cells runs/bench/cells    the table, and the false alarms

One line per threshold that a sign of a recorded run has: the quantity, the threshold, the healthy
value that comes nearest to it, and how many times it would have to grow (or shrink) to get there.
The same for the checkups of these setups (`checkup.json`).
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatline.bench.shares import exact_share
from flatline.diagnosis.report import Report, diagnose
from flatline.errors import NotRecorded
from flatline.hypotheses import find
from flatline.hypotheses.drift import drift_of
from flatline.hypotheses.groups import reward_groups, right_part, standardised, within_correlation
from flatline.hypotheses.h04_context_truncation import ENDED_BY_LENGTH
from flatline.hypotheses.h10_template_drift import EDGE
from flatline.hypotheses.h24_learning_rate import BEGINNING
from flatline.hypotheses.h27_gradient_clipping import EPSILON
from flatline.hypotheses.h45_no_headroom import BEGINNING as AT_THE_START
from flatline.hypotheses.logprobs import Gaps, at_equal_weights
from flatline.stats import Estimate
from flatline.trace import Trace

LOOKS = (1, 2, 3, 5, 8, 12, 20, 1_000_000)
"""Steps after which a run is diagnosed; a user may ask at any time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded healthy run."""

    name: str
    trace: Trace
    report: Report

    def measured(self, code: str) -> float:
        """What a hypothesis measured; NaN where it found that it does not apply."""
        value = next(f.measured for f in self.report.findings if f.hypothesis == code)
        value = value.value if isinstance(value, Estimate) else value
        return math.nan if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Quantity:
    """What one threshold is compared with."""

    code: str
    what: str
    limit: str
    """The threshold's name in the file of the hypothesis."""
    of: Callable[[Run], float]
    below: bool = False
    """The alarm is below the threshold, not above."""

    @property
    def threshold(self) -> float:
        return float(getattr(sys.modules[type(find(self.code)).__module__], self.limit))

    def nearest(self, runs: list[Run]) -> tuple[float, str, int]:
        """The healthy value nearest to the threshold, whose it is, and how many runs have one."""
        found = [(value, run.name) for run in runs if math.isfinite(value := self._value(run))]
        if not found:
            return math.nan, "", 0
        value, name = (min if self.below else max)(found)
        return value, "all" if len({one for one, _ in found}) == 1 else name, len(found)

    def _value(self, run: Run) -> float:
        with suppress(NotRecorded):
            return float(self.of(run))
        return math.nan


# -- what is compared -------------------------------------------------------------------------


def finding(code: str) -> Callable[[Run], float]:
    return lambda run: run.measured(code)


def gap(of: Callable[[Gaps], float]) -> Callable[[Run], float]:
    """Of the log-probs of step 1, where sampler and trainer hold the same weights."""
    return lambda run: of(at_equal_weights(run.trace))


def first_kl(run: Run) -> float:
    return float(run.trace.steps["kl"][run.trace.steps["step"] == 1].max(initial=-math.inf))


def late_kl(run: Run) -> float:
    kl = run.trace.steps["kl"]
    kl = kl[np.isfinite(kl)]
    return float(np.median(kl[-(len(kl) // 3) :]))


def loss_follows_kl(run: Run) -> float:
    loss, kl = run.trace.steps["loss"], run.trace.steps["kl"]
    known = np.isfinite(loss) & np.isfinite(kl)
    plain = run.trace.settings.get("loss_type") == "grpo"
    return float(np.corrcoef(loss[known], kl[known])[0, 1]) if plain else math.nan


def beta_weight(run: Run) -> float:
    size = np.abs(run.trace.rollouts["advantage"])
    return float((run.trace.settings.get("beta") or 0.0) / size[size > 1e-6].mean())


def lost_documents(run: Run) -> float:
    rollouts = run.trace.rollouts
    dropped = np.nan_to_num(rollouts["documents_dropped"]) > 0
    return float(((rollouts["finish"] == "context") | dropped).mean())


def cut_off(run: Run) -> float:
    return float(np.isin(run.trace.rollouts["finish"].astype(str), ENDED_BY_LENGTH).mean())


def held_out_gap(run: Run) -> float:
    return abs(run.measured("H08")) / reward_groups(run.trace).span


def fall(run: Run) -> float:
    groups = reward_groups(run.trace)
    late = groups.step > np.quantile(np.unique(groups.step), 2 / 3)
    return float(groups.mean[:BEGINNING].mean() - groups.mean[late].mean()) / groups.span


def advantages_follow(run: Run) -> float:
    index = run.trace.groups().index
    pair = [standardised(run.trace.rollouts[name], index) for name in ("reward", "advantage")]
    return within_correlation(pair[0], pair[1], index).value


def fallen_entropy(run: Run) -> float:
    entropy = run.trace.steps["entropy"][run.trace.steps["step"] > 0]
    third = len(entropy) // 3
    return float(entropy[-third:].mean() / entropy[:third].mean())


def longer(run: Run) -> float:
    drift = drift_of(run.trace, np.log(np.maximum(run.trace.rollouts["model_tokens"], 1.0)))
    return math.exp(abs(drift.change.value)) if drift else math.nan


def right_at_start(run: Run) -> float:
    name = right_part(run.trace)
    right = run.trace.parts()[name] if name else np.full(len(run.trace.rollouts), np.nan)
    return float(np.nanmean(right[run.trace.groups().index < AT_THE_START]))


def logged_off(run: Run) -> float:
    reward, logged = run.trace.rollouts["reward"], run.trace.metric("reward")
    steps, index = np.unique(run.trace.rollouts["step"], return_inverse=True)
    earned = np.bincount(index, reward) / np.bincount(index)
    told = dict(zip(run.trace.steps["step"].tolist(), logged.tolist(), strict=True))
    off = np.abs(np.array([told.get(step, math.nan) for step in steps.tolist()]) - earned)
    return float(np.nanmax(off) / np.ptp(reward))


def clipped_element(run: Run) -> float:
    """In units of Adam's epsilon."""
    return run.measured("H27") / EPSILON


QUANTITIES = (
    Quantity("H01", "differing groups that differ by crumbs", "MOSTLY", finding("H01")),
    Quantity("H02", "tokens of the model without loss, others with it", "LOST", finding("H02")),
    Quantity("H03", "KL per token at step 1 (nat)", "START", first_kl),
    Quantity("H03", "median KL of the last third (nat)", "BROKEN", late_kl),
    Quantity("H03", "correlation of loss and KL", "OPPOSED", loss_follows_kl, below=True),
    Quantity("H03", "beta over the mean advantage (absolute)", "HEAVY", beta_weight),
    Quantity("H04", "episodes that lost documents", "LOST", lost_documents),
    Quantity("H04", "completions cut off by a limit", "CUT", cut_off),
    Quantity("H05", "correlation of reward and right", "FOLLOWS", finding("H05"), below=True),
    Quantity("H06", "late sampler-trainer gap (nat)", "APART", finding("H06")),
    Quantity("H08", "training against held-out, of the span", "APART", held_out_gap),
    Quantity("H09", "context tokens hidden from the trainer", "HIDDEN", finding("H09")),
    Quantity(
        "H10",
        "gap at step 1 where later turns begin (nat)",
        "APART",
        gap(lambda gaps: gaps.mean((gaps.turn > 0) & (gaps.offset < EDGE)).value),
    ),
    Quantity(
        "H10",
        "gap of the first turn at step 1 (nat)",
        "OTHER_PROMPT",
        gap(lambda gaps: gaps.mean(gaps.turn == 0).value),
    ),
    Quantity(
        "H11",
        "largest gap of a token at step 1 (nat)",
        "JUMP",
        gap(lambda gaps: float(np.abs(gaps.gap).max())),
    ),
    Quantity("H13", "first rollouts that the sampler's limit cut", "MANY", finding("H13")),
    Quantity("H14", "ended rollouts without a trained token", "LEFT_OUT", finding("H14")),
    Quantity("H15", "gap of padded rollouts at step 1 (nat)", "APART", finding("H15")),
    Quantity("H16", "prompts that begin with one token twice", "ALL", finding("H16")),
    Quantity("H18", "gap after updates, with an adapter (nat)", "APART", finding("H18")),
    Quantity(
        "H21",
        "slope of trainer on sampler, off 1",
        "SLOPE",
        gap(lambda gaps: abs(gaps.line()[0].value)),
    ),
    Quantity(
        "H21",
        "trainer below sampler, mean (nat)",
        "CUT",
        gap(lambda gaps: float(-gaps.gap.mean())),
    ),
    Quantity("H23", "spread of equal beginnings (nat)", "NOISY", finding("H23")),
    Quantity("H24", "median KL of the last third (nat)", "UNMOVED_KL", late_kl, below=True),
    Quantity("H24", "fall of the reward, of its span", "FALL", fall),
    Quantity("H25", "elements that a step changes", "HALF", finding("H25"), below=True),
    Quantity("H26", "elements that do not move", "MANY", lambda run: 1 - run.measured("H26")),
    Quantity(
        "H27", "clipped element over Adam's epsilon", "SWALLOWED", clipped_element, below=True
    ),
    Quantity("H28", "recorded loss over the expected one", "SLOPE", finding("H28")),
    Quantity("H29", "trained tokens that are clipped", "MANY", finding("H29")),
    Quantity("H30", "late entropy over early", "FALLEN", fallen_entropy, below=True),
    Quantity("H31", "beta over a typical advantage", "LIGHT", finding("H31")),
    Quantity("H32", "groups of equal rewards", "DEAD", finding("H32")),
    Quantity(
        "H33", "correlation of advantage and reward", "FOLLOWS", advantages_follow, below=True
    ),
    Quantity("H34", "equal pairs beyond what log-probs allow", "SURPLUS", finding("H34")),
    Quantity("H35", "late length over early, or its inverse", "TIMES", longer),
    Quantity("H36", "correlation of reward and finding", "PAID", finding("H36"), below=True),
    Quantity("H37", "correlation of reward and form", "DOMINATES", finding("H37")),
    Quantity("H38", "fall of right answers", "FALLS", lambda run: -run.measured("H38")),
    Quantity("H39", "right answers paid as wrong", "MISREAD", finding("H39")),
    Quantity("H40", "best paid level over worst", "APART", finding("H40")),
    Quantity("H41", "calls that fail in the first steps", "FAILED", finding("H41")),
    Quantity("H42", "episodes that run out of turns", "OUT_OF_TURNS", finding("H42")),
    Quantity("H43", "late calls over early", "GIVEN_UP", finding("H43"), below=True),
    Quantity(
        "H44",
        "correlation of hops and step (absolute)",
        "ORDERED",
        lambda r: abs(r.measured("H44")),
    ),
    Quantity("H45", "first groups that hold a right rollout", "FLOOR", finding("H45"), below=True),
    Quantity("H45", "right rollouts at the start", "CEILING", right_at_start),
    Quantity("H48", "logged against earned reward, of the span", "OFF", logged_off),
    Quantity("H61", "spread of equal beginnings at step 1 (nat)", "APART", finding("H61")),
    Quantity("H63", "late sampler-trainer gap over the early one", "GROWN", finding("H63")),
)

LIVE = (
    ("H01", "differing groups that differ by crumbs", "MOSTLY", False),
    ("H03", "KL per token before any update (nat)", "START", False),
    ("H05", "standard deviation of what gold earns", "SCATTER", False),
    ("H06", "gap after the weights were moved (nat)", "APART", False),
    ("H09", "change by another question or tool output (nat)", "MOVED", True),
    ("H23", "difference of two identical passes (nat)", "ROUNDED", False),
    ("H24", "KL of one step at the configured rate (nat)", "HUGE_KL", False),
    ("H32", "groups of equal rewards", "DEAD", False),
    ("H33", "share of the data that an epoch visits", "VISITED", True),
)
"""What checkups compare: hypothesis, quantity, threshold, and whether the alarm is below it."""


# -- the tables -------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=Path, default=Path("runs/bench/cells"))
    folders = sorted(parser.parse_args().cells.glob("calibration.*"))
    runs = [Run(_setup(f), trace := Trace.open(f / "run"), diagnose(trace)) for f in folders]
    live = {_setup(f): f / "checkup.json" for f in folders}
    reports = {name: json.loads(p.read_text()) for name, p in live.items() if p.is_file()}
    print(HEADER)
    for quantity in QUANTITIES:
        print(line(quantity, *quantity.nearest(runs)))
    if reports:
        print(f"\nCheckups of the same setups, before training ({len(reports)}):\n\n{HEADER}")
        for one in live_quantities(reports, runs):
            print(one)
    print()
    print_false_alarms(runs, reports)
    return 0


HEADER = (
    "| hypothesis | quantity | alarm | nearest healthy value | setup | margin | setups |\n"
    "|---|---|---|---|---|---|---|"
)


def _setup(cell: Path) -> str:
    return cell.name.removeprefix("calibration.")


def line(quantity: Quantity, value: float, name: str, runs: int) -> str:
    side = "below" if quantity.below else "above"
    pair = (value, quantity.threshold) if quantity.below else (quantity.threshold, value)
    # A correlation that must not fall below -0.9 has no factor; nor has a value of 0.
    told = "" if pair[1] <= 0 or pair[0] <= 0 else f"{pair[0] / pair[1]:.2g} times"
    return (
        f"| {quantity.code} | {quantity.what} | {side} {quantity.threshold:g} | {value:.2g} "
        f"| {name} | {told} | {runs} |"
    )


def live_quantities(reports: dict[str, dict], runs: list[Run]) -> list[str]:
    """The lines of checkups; the reach of a rate needs the steps of its run."""
    found = {name: _measured(report) for name, report in reports.items()}
    steps = {run.name: run.trace.settings.get("max_steps") or 0 for run in runs}
    lines = [_live_line(code, what, limit, below, found) for code, what, limit, below in LIVE]
    reach = {name: {"H24": one["H24"] * steps[name]} for name, one in found.items()}
    return [*lines, _live_line("H24", "that KL times the steps", "ENOUGH_KL", True, reach)]


def _live_line(
    code: str, what: str, limit: str, below: bool, found: dict[str, dict[str, float]]
) -> str:
    known = [(one[code], name) for name, one in found.items() if math.isfinite(one[code])]
    value, name = (min if below else max)(known, default=(math.nan, ""))
    name = "all" if len({one for one, _ in known}) == 1 else name
    quantity = Quantity(code, what, limit, lambda run: math.nan, below)
    return line(quantity, value, name, len(known))


def _measured(report: dict) -> dict[str, float]:
    values = {f["hypothesis"]: f["measured"] for f in report["findings"]}
    plain = {code: v["value"] if isinstance(v, dict) else v for code, v in values.items()}
    return {code: math.nan if v is None else float(v) for code, v in plain.items()}


def print_false_alarms(runs: list[Run], reports: dict[str, dict]) -> None:
    at_end = [bool(run.report.alarms) for run in runs]
    told = {run.name: _alarms_on_the_way(run) for run in runs}
    _print_share(f"Diagnosed at the end: {sum(at_end)} of {len(runs)} setups alarm", at_end)
    some = [bool(found) for found in told.values()]
    _print_share(f"At any of {len(LOOKS)} points on the way: {sum(some)} of {len(runs)}", some)
    for name, found in told.items():
        for text in found:
            print(f"  {name}: {text}")
    if reports:
        live = [_live_alarms(report) for report in reports.values()]
        _print_share(f"Checkups: {sum(live)} of {len(live)}", live)


def _alarms_on_the_way(run: Run) -> list[str]:
    return [
        f"step {step}: {finding.hypothesis} {finding.text}"
        for step in LOOKS
        for finding in diagnose(run.trace.until(step)).alarms
    ]


def _live_alarms(report: dict) -> bool:
    return any(finding["level"] in ("fault", "suspect") for finding in report["findings"])


def _print_share(text: str, alarming: list[bool]) -> None:
    share = exact_share(sum(alarming), len(alarming))
    print(f"{text}; 95 % interval of the share: {share['low']:.0%} to {share['high']:.0%}.")


if __name__ == "__main__":
    sys.exit(main())
