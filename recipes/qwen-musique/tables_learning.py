"""Tables of what the trainings earned, and what their steps looked like."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from flatline.heldout import HeldOutScore
from flatline.stats import Estimate, mean_of_units, paired_difference
from flatline.tasks.base import COMBINED

Json = dict[str, Any]
Rows = Iterable[str]

PAIRS = (("healthy", "mask"), ("healthy", "preset"), ("gsm8k-healthy", "gsm8k-mask"))
"""Arms that differ in the defect alone."""
WHOLE = 100
"""From here on a number of a curve is shown without decimals."""
CURVES = {
    "reward": "reward",
    "kl": "KL",
    "grad_norm": "gradient norm",
    "completion_length": "tokens a play",
}
"""Columns that are shown step by step, and what they are called."""
THEIRS = (
    ("reward, start", "0.60 to 0.70"),
    ("reward, gain", "none; up and down around the start"),
    ("KL, mean of a step at its peak", "reached 1e5, if that was a mean"),
    ("KL, worst token", "reached 1e5, if it was that"),
    ("gradient norm, peak", "exploded"),
    ("GSM8K, reward", "rises within 20 steps"),
    ("GSM8K, KL", "0.0014 to 0.0018"),
    ("GSM8K, gradient norm", "0.01 to 0.03"),
)
"""What the people who met the defect saw: 7B models, KL weight 0.04, rates of 1e-6 to 1e-5."""


def trainings(kept: Json) -> Rows:
    head = (
        "run | steps | reward, first third | last third | KL, median | KL, peak | worst token "
        "| gradient norm, median | peak | sampler - trainer, nat "
        "| tokens a play, first third | last third"
    )
    return table(head, (_training(kept, name) for name in kept["runs"]))


def _training(kept: Json, name: str) -> str:
    kl, norm, gap = (curve(kept, name, column) for column in ("kl", "grad_norm", "logprob_gap"))
    first, last = _ends(curve(kept, name, "reward"))
    begin, end = _ends(curve(kept, name, "completion_length"))
    worst = max(curve(kept, name, "kl_max"))
    return (
        f"{name} | {len(kl)} | {first:.3f} | {last:.3f} | {median(kl):.3g} | {max(kl):.3g} "
        f"| {_plain(worst)} | {median(norm):.3g} | {_plain(max(norm))} | {median(gap):.2g} "
        f"| {begin:.0f} | {end:.0f}"
    )


def curves(kept: Json) -> Rows:
    yield "```text"
    for column, title in CURVES.items():
        yield f"{title}, step by step"
        for name in kept["runs"]:
            values = " ".join(map(_plain, curve(kept, name, column)))
            yield f"  {name:16}{values}"
    yield "```"


def _plain(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= WHOLE else f"{value:.3g}"


def heldout(kept: Json) -> Rows:
    def row(name: str) -> str:
        before, after = scores(kept, name)
        return f"{name} | {before.reward} | {after.reward} | {told(after.since(before))}"

    return table("run | before | after | gain, play by play", map(row, kept["runs"]))


def arms(kept: Json) -> Rows:
    """Over seeds, and arms against each other on matched seeds and problems."""
    arms = dict.fromkeys(run["arm"] for run in kept["runs"].values())
    seeds = {arm: [_gain(kept, run).value for run in _arm(kept, arm).values()] for arm in arms}
    rows = [f"gain of {arm} | seeds | {_over_seeds(found)}" for arm, found in seeds.items()]
    for one, other in PAIRS:
        if _arm(kept, one).keys() & _arm(kept, other).keys():
            rows += _against(kept, one, other)
    return table("| over | estimate", rows)


def _against(kept: Json, one: str, other: str) -> Iterator[str]:
    first, second = _arm(kept, one), _arm(kept, other)
    both = sorted(first.keys() & second.keys())
    apart = [_gain(kept, first[s]).value - _gain(kept, second[s]).value for s in both]
    yield f"{one} - {other} | seeds | {_over_seeds(apart)}"
    ends = [(scores(kept, first[s])[-1], scores(kept, second[s])[-1]) for s in both]
    problems = [problem for ours, _ in ends for problem in ours.problems]
    ours, theirs = ([x for pair in ends for x in pair[side].rewards] for side in (0, 1))
    top = max(1.0, *ours, *theirs)
    yield (
        f"{one} - {other}, at the end | problems | "
        f"{told(paired_difference(theirs, ours, problems, bounds=(0.0, top)))}"
    )


def parts(kept: Json) -> Rows:
    def row(name: str) -> str:
        before, after = scores(kept, name)
        cells = (
            f"{before.parts[part]:.3f} to {after.parts[part]:.3f}" if part in before.parts else ""
            for part in parts
        )
        return f"{name} | {' | '.join(cells)}"

    parts = [part for part in scores(kept, "healthy-0")[0].parts if part != COMBINED]
    return table(f"run | {' | '.join(parts)}", map(row, kept["runs"]))


def part_gains(kept: Json) -> Rows:
    """Gain of every part of a run over problems."""

    def row(name: str) -> str:
        has = scores(kept, name)[0].parts
        cells = (_bounds(_gain(kept, name, part)) if part in has else "" for part in parts)
        return f"{name} | {' | '.join(cells)}"

    parts = [part for part in scores(kept, "healthy-0")[0].parts if part != COMBINED]
    return table(f"run | {' | '.join(parts)}", map(row, kept["runs"]))


def parts_of_arms(kept: Json) -> Rows:
    """Gain of every part over the seeds of an arm."""
    arms = _present(kept, "healthy", "mask", "preset")
    rows = (
        f"{part} | "
        + " | ".join(
            _over_seeds([_gain(kept, run, part).value for run in _arm(kept, arm).values()])
            for arm in arms
        )
        for part in scores(kept, "healthy-0")[0].parts
    )
    return table(f"part | {' | '.join(arms)}", rows)


def control(kept: Json) -> Rows:
    sound, blind, parts = "gsm8k-healthy", "gsm8k-mask", ("exact_match", "format")
    rows = [
        f"gain of {name} | {part} | {told(_gain(kept, name, part))}"
        for name in (sound, blind)
        for part in parts
    ]
    ends = scores(kept, sound)[-1], scores(kept, blind)[-1]
    rows += [
        f"{sound} - {blind}, at the end | {p} | {told(ends[0].since(ends[1], p))}" for p in parts
    ]
    return table("| part | play by play", rows)


def beside(kept: Json) -> Rows:
    arms = _present(kept, "preset", "mask", "healthy")
    ours = [_seen(kept, arm) for arm in arms]
    rows = (
        f"{what} | {theirs} | {' | '.join(arm[what] for arm in ours)}"
        for what, theirs in THEIRS
        if any(arm[what] for arm in ours)
    )
    return table(f"| they | {' | '.join(arms)}", rows)


def _present(kept: Json, *arms: str) -> list[str]:
    return [arm for arm in arms if _arm(kept, arm)]


def _seen(kept: Json, arm: str) -> dict[str, str]:
    """The same rows as `THEIRS`, from the runs of an arm and of its control."""
    runs, control = list(_arm(kept, arm).values()), f"gsm8k-{arm}"
    gain = _over_seeds([_gain(kept, run).value for run in runs])
    first = [
        f"{scores(kept, runs[0])[0].reward.value:.3f}",
        gain,
        *(_peaks(kept, runs, column) for column in ("kl", "kl_max", "grad_norm")),
    ]
    last = _control_seen(kept, control) if control in kept["runs"] else [""] * 3
    return dict(zip((what for what, _ in THEIRS), first + last, strict=True))


def _peaks(kept: Json, runs: list[str], column: str) -> str:
    return ", ".join(_plain(max(curve(kept, run, column))) for run in runs)


def _control_seen(kept: Json, name: str) -> list[str]:
    before, after = scores(kept, name)
    kl, norm = (curve(kept, name, column) for column in ("kl", "grad_norm"))
    return [
        f"{before.reward.value:.3f} to {after.reward.value:.3f}",
        f"{_plain(median(kl))} (peak {_plain(max(kl))})",
        f"{_plain(median(norm))} (peak {_plain(max(norm))})",
    ]


def table(head: str, rows: Rows) -> Iterator[str]:
    yield f"| {head} |"
    yield "|---" * (head.count("|") + 1) + "|"
    yield from (f"| {row} |" for row in rows)


def told(estimate: Estimate) -> str:
    return f"{_bounds(estimate)}, n = {estimate.n}"


def _bounds(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def curve(kept: Json, name: str, column: str) -> list[float]:
    return [value for value in kept["runs"][name]["steps"][column] if value is not None]


def scores(kept: Json, name: str) -> list[HeldOutScore]:
    run = kept["runs"][name]
    problems = kept["problems"][run["settings"]["task"]]
    return [
        HeldOutScore(
            step=row["step"],
            problems=problems,
            rewards=row["plays"][COMBINED],
            parts={part: mean(plays) for part, plays in row["plays"].items()},
            plays=row["plays"],
        )
        for row in run["heldout"]
    ]


def mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def _gain(kept: Json, name: str, part: str = COMBINED) -> Estimate:
    before, after = scores(kept, name)
    return after.since(before, part)


def _arm(kept: Json, arm: str) -> dict[int, str]:
    """Its runs by seed."""
    return {
        run["settings"]["seed"]: name for name, run in kept["runs"].items() if run["arm"] == arm
    }


def _over_seeds(values: list[float]) -> str:
    return told(mean_of_units(values)) if len(values) > 1 else f"{values[0]:+.3f}, n = 1"


def _ends(values: list[float]) -> tuple[float, float]:
    """Mean of the first and of the last third."""
    third = max(1, len(values) // 3)
    return mean(values[:third]), mean(values[-third:])
