"""How often verdicts err, and what they can find: the tables of docs/verdicts.md.

    python benchmarks/verdicts.py            every table, about 4 minutes on one core
    python benchmarks/verdicts.py --quick    the same with fewer investigations, for a first look

Every simulated investigation calls `flatline.verdict.decide` at each look, in order, and stops
where it says that the question is settled. The mechanism always flips, which is the worst case:
nothing but the outcome stands between noise and a false "validated".
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from flatline.stats import Estimate, cluster_mean, sequential_level, t_score
from flatline.verdict import Mechanism, Presence, Rule, Ruling, Verdict, decide, detectable

FLIPS = Mechanism(control=Presence.PRESENT, treated=Presence.ABSENT, direct=True, text="simulated")
FAMILIES = (1, 5, 8)
"""Hypotheses tested against one control arm."""
PLANS = {4: (3, 4), 6: (3, 4, 5, 6), 8: (3, 4, 5, 6, 7, 8), 10: (3, 4, 5, 6, 7, 8, 9, 10)}
"""Looks by the most seeds."""
SPREADS = (0.02, 0.03, 0.05)
"""Standard deviations of the difference between matched seeds, in reward."""

Array = NDArray[np.float64]
Runs = Callable[[Generator, tuple[int, ...]], Array]


@dataclass(frozen=True, slots=True)
class Noise:
    """How the outcomes of runs scatter that all have the same true outcome."""

    name: str
    draw: Runs


def _coarse(problems: int) -> Runs:
    return lambda rng, shape: rng.binomial(problems, 0.5, shape) / problems


NOISES = (
    Noise("normal", lambda rng, shape: rng.normal(0, 0.05, shape)),
    Noise("skewed (lognormal)", lambda rng, shape: 0.05 * rng.lognormal(0, 1, shape)),
    Noise("heavy tails (t, 3 degrees)", lambda rng, shape: 0.05 * rng.standard_t(3, shape)),
    Noise("bounded (near 1, beta)", lambda rng, shape: rng.beta(4, 0.5, shape)),
    Noise("coarse (8 problems)", _coarse(8)),
    Noise("coarsest (1 problem)", _coarse(1)),
)


def conclude(differences: Sequence[float], rule: Rule) -> Verdict:
    """One investigation: look where the rule looks, stop when it says so."""
    for look in rule.looks:
        verdict = decide("H09", differences[:look], rule, FLIPS)
        if verdict.settled:
            break
    return verdict


def conclude_all(differences_IS: Array, rule: Rule) -> list[Verdict]:
    """One verdict per row: I investigations of S seeds."""
    return [conclude(row, rule) for row in differences_IS.tolist()]


def share(flags: Sequence[bool] | NDArray[np.bool_]) -> Estimate:
    return cluster_mean(np.asarray(flags, dtype=float), np.arange(len(flags)))


def percent(estimate: Estimate) -> str:
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def table(title: str, header: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def falsely_validated(noise: Noise, family: int, investigations: int) -> Estimate:
    """Share of investigations without any effect in which some hypothesis is validated."""
    rng = np.random.default_rng(family)
    # A smallest effect far below the noise: it must not be what keeps the error rate.
    rule = Rule(smallest_effect=0.005, family=family)
    runs = noise.draw(rng, (investigations, family + 1, rule.looks[-1]))
    control, treated = runs[:, :1], runs[:, 1:]
    found = np.array(
        [
            [verdict.ruling is Ruling.VALIDATED for verdict in conclude_all(differences, rule)]
            for differences in treated - control
        ]
    )
    return share(found.any(axis=1))


def error_rows(investigations: int) -> Iterator[Sequence[str]]:
    for noise in NOISES:
        cells = [percent(falsely_validated(noise, k, investigations)) for k in FAMILIES]
        yield noise.name, *cells


def skewed_rows(investigations: int) -> Iterator[Sequence[str]]:
    rule = Rule(smallest_effect=0.005)
    for sigma in (0.25, 0.5, 1.0):
        cells = []
        for sign in (1, -1):
            drawn = np.random.default_rng(0).lognormal(0, sigma, (investigations, rule.looks[-1]))
            centred = sign * 0.05 * (drawn - np.exp(sigma**2 / 2))
            verdicts = conclude_all(centred, rule)
            cells.append(percent(share([v.ruling is Ruling.VALIDATED for v in verdicts])))
        yield f"lognormal, sigma {sigma}", *cells


def missed_rows(investigations: int) -> Iterator[Sequence[str]]:
    for sd in SPREADS:
        rule = Rule()
        noise = np.random.default_rng(0).normal(0, sd, (investigations, rule.looks[-1]))
        verdicts = conclude_all(rule.smallest_effect + noise, rule)
        ruled = {
            ruling: share([v.ruling is ruling for v in verdicts])
            for ruling in (Ruling.VALIDATED, Ruling.PARTIAL, Ruling.INCONCLUSIVE)
        }
        yield f"{sd}", *(percent(estimate) for estimate in ruled.values())


def naive_rows(investigations: int) -> Iterator[Sequence[str]]:
    """What looking again and again at a plain 95 % interval would do."""
    for looks in PLANS.values():
        per_look = sequential_level(looks, 0.05)
        drawn = np.random.default_rng(1).normal(0, 0.05, (investigations, looks[-1]))
        plain = [_ever_moved(row, looks) for row in drawn.tolist()]
        kept = conclude_all(drawn, Rule(smallest_effect=0.005, looks=looks))
        validated = share([v.ruling is Ruling.VALIDATED for v in kept])
        yield str(looks), f"{per_look:.4f}", percent(share(plain)), percent(validated)


def _ever_moved(row: Sequence[float], looks: Sequence[int]) -> bool:
    # A rule that plans one look has the plain 95 % interval there; here it is used at every look.
    rules = {look: Rule(smallest_effect=0.005, looks=(look,)) for look in looks}
    return any(
        decide("H09", row[:look], rule, FLIPS).ruling is Ruling.VALIDATED
        for look, rule in rules.items()
    )


def power_rows(investigations: int) -> Iterator[Sequence[str]]:
    """By the size of the effect in reward, at the default rule."""
    for effect in (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3):
        cells = [_found(effect, sd, Rule(), investigations) for sd in SPREADS]
        yield f"{effect:g}", *(f"{validated:.0%}, {seeds:.1f} seeds" for validated, seeds in cells)


def power_in_sd_rows(investigations: int) -> Iterator[Sequence[str]]:
    """By the size of the effect in standard deviations and the most seeds."""
    for effect in (1, 1.5, 2, 3, 4, 6, 10):
        cells = []
        for looks in PLANS.values():
            rule = Rule(smallest_effect=0.05, looks=looks)
            validated, seeds = _found(0.05 * effect, 0.05, rule, investigations)
            cells.append(f"{validated:.0%}, {seeds:.1f} seeds")
        yield f"{effect:g}", *cells


def _found(effect: float, sd: float, rule: Rule, investigations: int) -> tuple[float, float]:
    """Share validated and mean number of seeds used."""
    noise = np.random.default_rng(2).normal(0, sd, (investigations, rule.looks[-1]))
    verdicts = conclude_all(effect + noise, rule)
    validated = np.mean([v.ruling is Ruling.VALIDATED for v in verdicts])
    return float(validated), float(np.mean([v.effect.n for v in verdicts]))


def detectable_rows() -> Iterator[Sequence[str]]:
    for family in FAMILIES:
        for most, looks in PLANS.items():
            rule = Rule(looks=looks, family=family)
            yield (
                str(family),
                str(most),
                f"{rule.level:.4f}",
                *(f"{detectable(rule, sd=sd):.3f}" for sd in SPREADS),
            )


def width_rows() -> Iterator[Sequence[str]]:
    """In standard deviations between seeds, at each look of the default rule."""
    for family in FAMILIES:
        rule = Rule(family=family)
        halves = (t_score(n - 1, 1 - rule.level) / n**0.5 for n in rule.looks)
        yield str(family), f"{rule.level:.4f}", *(f"{half:.1f} sd" for half in halves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the investigations")
    many = 1_000 if parser.parse_args().quick else 20_000
    some = many // 4
    spreads = [f"sd {sd}" for sd in SPREADS]
    print(f"{many:,} investigations a cell in the tables of errors, {some:,} in those of power.")
    table(
        "No effect: investigations with any hypothesis falsely validated",
        ["noise of one run", *(f"{k} hypotheses" if k > 1 else "1 hypothesis" for k in FAMILIES)],
        error_rows(many),
    )
    table(
        "No mean effect, but the treatment makes the differences skewed",
        ["differences", "long tail upwards", "long tail downwards"],
        skewed_rows(many),
    )
    table(
        "No effect: looking after every seed, with a plain 95 % interval and with this rule",
        ["looks", "level of one look", "plain: falsely validated", "rule: falsely validated"],
        naive_rows(many),
    )
    table(
        "A true effect of exactly the smallest that matters (0.05)",
        ["sd between seeds", "validated", "partial (wrong)", "inconclusive"],
        missed_rows(many),
    )
    table(
        "Validated, and seeds used, by effect in reward (at most 6 seeds, 1 hypothesis)",
        ["true effect", *spreads],
        power_rows(some),
    )
    table(
        "Validated, and seeds used, by effect in standard deviations (smallest effect: 1)",
        ["true effect", *(f"at most {most} seeds" for most in PLANS)],
        power_in_sd_rows(some),
    )
    table(
        "The least effect that is validated with a chance of 80 %",
        ["hypotheses", "at most seeds", "level of one look", *spreads],
        detectable_rows(),
    )
    table(
        "How far the interval reaches to each side",
        ["hypotheses", "level of one look", *(f"{n} seeds" for n in Rule().looks)],
        width_rows(),
    )


if __name__ == "__main__":
    main()
