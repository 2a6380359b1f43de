"""How often verdicts err, and what they can find: the figures of docs/verdicts.md.

    python benchmarks/verdicts.py            every table, about a minute on one core
    python benchmarks/verdicts.py --quick    the same with fewer investigations, for a first look

Every simulated investigation looks at each planned number of seeds, in order, and stops where the
rule says that the question is settled (`flatline.verdict.planning.ends_of`, which is `decide` for
many at once; `make quality` calls `decide` itself). The mechanism always flips, which is the worst
case: nothing but the outcome stands between noise and a false "validated".

In every case the mean effect is 0, or below, so that whatever is validated is wrong.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from flatline.stats import Estimate, cluster_mean, sequential_level, t_score
from flatline.verdict import Rule, detectable, effect_of
from flatline.verdict.planning import Ends, ends_of

FAMILIES = (1, 3, 8)
"""Hypotheses tested against one control arm."""
PLANS = {4: (3, 4), 6: (3, 4, 5, 6), 8: (3, 4, 5, 6, 7, 8), 10: (3, 4, 5, 6, 7, 8, 9, 10)}
"""Looks by the most seeds."""
SPREADS = (0.02, 0.03, 0.05)
"""Standard deviations of the difference between matched seeds, in reward."""
NOISE = 0.03
"""Standard deviation of one run, where a case does not say another one."""
LOSS = 0.6
"""Reward that a run loses by collapsing."""
TINY = 0.005
"""A smallest effect far below the noise: it must not be what keeps the error rate."""

Array = NDArray[np.float64]
Shape = tuple[int, int, int]
Runs = Callable[[Generator, Shape], Array]
"""Outcomes of so many investigations, arms and seeds."""


@dataclass(frozen=True, slots=True)
class Case:
    """How runs scatter where the treatment does not help."""

    name: str
    control: Runs
    treated: Runs
    looks: tuple[int, ...] = (3, 4, 5, 6)

    def differences(self, rng: Generator, investigations: int, arms: int) -> Array:
        """Treated minus the one control arm that all hypotheses share."""
        seeds = self.looks[-1]
        control = self.control(rng, (investigations, 1, seeds))
        return self.treated(rng, (investigations, arms, seeds)) - control

    def rule(self, family: int) -> Rule:
        return Rule(smallest_effect=TINY, looks=self.looks, family=family)


def normal(sd: float, mean: float = 0.0) -> Runs:
    return lambda rng, shape: rng.normal(mean, sd, shape)


def heavy(degrees: int) -> Runs:
    return lambda rng, shape: NOISE * rng.standard_t(degrees, shape)


def skewed(sign: int, sigma: float) -> Runs:
    """A lognormal tail, upwards or downwards, about a mean of 0."""

    def draw(rng: Generator, shape: Shape) -> Array:
        return sign * 0.05 * (rng.lognormal(0, sigma, shape) - np.exp(sigma**2 / 2))

    return draw


def problems(count: int, solved: float = 0.5) -> Runs:
    """A mean over so few problems that outcomes fall on a grid."""
    return lambda rng, shape: rng.binomial(count, solved, shape) / count


def tossed(gap: float) -> Runs:
    """So much above or below by the toss of a coin, and nothing else but rounding to float32."""

    def draw(rng: Generator, shape: Shape) -> Array:
        base = rng.uniform(0.3, 0.7, shape).astype(np.float32)
        side = rng.choice(np.array([-gap, gap], dtype=np.float32), shape)
        return np.asarray(((base + side) - base).astype(np.float64))

    return draw


def collapsing(chance: float, typical: float = 0.0, noise: float = NOISE) -> Runs:
    """Now and then a run loses LOSS; the others gain `typical`."""

    def draw(rng: Generator, shape: Shape) -> Array:
        collapsed = rng.random(shape) < chance
        return rng.normal(0, noise, shape) + np.where(collapsed, -LOSS, typical)

    return draw


def balanced(chance: float) -> float:
    """What the runs that do not collapse gain, so that the mean effect is 0."""
    return chance * LOSS / (1 - chance)


def correlated(share: float) -> Runs:
    """Seeds that have so large a share of their variance in common."""

    def draw(rng: Generator, shape: Shape) -> Array:
        common = rng.normal(0, 0.05, (*shape[:2], 1))
        return share**0.5 * common + (1 - share) ** 0.5 * rng.normal(0, 0.05, shape)

    return draw


def missing(runs: Runs, chance: float) -> Runs:
    """Some runs fail for reasons of their own; the seeds that are left move up."""

    def draw(rng: Generator, shape: Shape) -> Array:
        drawn = np.where(rng.random(shape) < chance, np.nan, runs(rng, shape))
        order = np.argsort(np.isnan(drawn), axis=-1, kind="stable")
        return np.take_along_axis(drawn, order, axis=-1)

    return draw


def failing(chance: float) -> Runs:
    """A run that collapses leaves no outcome; only those that gain are counted."""
    return missing(normal(NOISE, balanced(chance)), chance)


def plays(rows: int, each: int) -> Runs:
    """A mean over held-out rows that are played several times: rows differ in how hard they are,
    and are the same in every run."""

    def draw(rng: Generator, shape: Shape) -> Array:
        solved = np.random.default_rng(0).beta(0.7, 0.7, rows)
        return np.asarray(rng.binomial(each, solved, (*shape, rows)).mean(-1) / each)

    return draw


def budgeted(runs: Runs) -> Runs:
    """A budget ends the experiment after any number of seeds, whatever these came to."""

    def draw(rng: Generator, shape: Shape) -> Array:
        drawn = runs(rng, shape)
        ends = rng.integers(2, shape[-1] + 1, (shape[0], 1, 1))
        return np.where(np.arange(shape[-1]) < ends, drawn, np.nan)

    return draw


def mostly_idle(runs: Runs, chance: float) -> Runs:
    """A remedy that finds something to do in some runs only, and does no good there; in the others
    the two arms are one run, bit for bit."""

    def draw(rng: Generator, shape: Shape) -> Array:
        return np.where(rng.random(shape) < chance, runs(rng, shape), 0.0)

    return draw


def alike(name: str, runs: Runs, looks: tuple[int, ...] = (3, 4, 5, 6)) -> Case:
    """Both arms scatter alike: the treatment does nothing at all."""
    return Case(name, runs, runs, looks)


FLAT = normal(NOISE)
STILL = normal(1e-12)
CHANCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)

HELD = (
    alike("normal", FLAT),
    alike("heavy tails (t, 3 degrees)", heavy(3)),
    alike("heavier tails (t, 2 degrees)", heavy(2)),
    alike("skewed alike in both arms (lognormal, sigma 1)", skewed(1, 1.0)),
    alike("bounded, near 1 (beta 4, 0.5)", lambda rng, shape: rng.beta(4, 0.5, shape)),
    alike("bounded, near 0 (beta 0.5, 4)", lambda rng, shape: rng.beta(0.5, 4, shape)),
    alike("grid: 1 problem, half solved", problems(1)),
    alike("grid: 8 problems, half solved", problems(8)),
    alike("grid: 64 problems, 97 % solved", problems(64, 0.97)),
    alike("grid: 256 problems, 3 % solved", problems(256, 0.03)),
    Case("+0.06 or -0.06 by a coin, float32", STILL, tossed(0.06)),
    Case("+0.3 or -0.3 by a coin, float32", STILL, tossed(0.3)),
    alike("equal constants (all differences 0)", lambda rng, shape: np.zeros(shape)),
    Case("seeds that change nothing (all differences equal)", STILL, correlated(1.0)),
    Case("treated runs scatter 4 times as much", FLAT, normal(4 * NOISE)),
    Case("control runs scatter 4 times as much", normal(4 * NOISE), FLAT),
    *(alike(f"{p:.0%} of runs collapse in both arms", collapsing(p)) for p in CHANCES),
    *(Case(f"{p:.0%} of treated runs collapse, no gain", FLAT, collapsing(p)) for p in CHANCES),
    *(
        Case(f"{p:.0%} of control runs collapse, the others gain", collapsing(p, balanced(p)), FLAT)
        for p in CHANCES[:-1]
    ),
    Case("long tail upwards (lognormal, sigma 1)", STILL, skewed(1, 1.0)),
    Case("long tail downwards, mild (lognormal, sigma 0.2)", STILL, skewed(-1, 0.2)),
    Case("seeds correlated, 0.05", STILL, correlated(0.05)),
    Case("seeds correlated, 0.1", STILL, correlated(0.1)),
    Case("a run in 5 missing, at random", FLAT, missing(FLAT, 0.2)),
    alike("script: 32 held-out rows, 8 plays each", plays(32, 8)),
    alike("script: 8 held-out rows, 4 plays each", plays(8, 4)),
    alike("script: a budget ends it after any seed", budgeted(FLAT)),
    alike("script: budget, 8 rows of 4 plays", budgeted(plays(8, 4))),
    Case("script: the remedy acts in half of the runs", STILL, mostly_idle(FLAT, 0.5)),
    Case("script: the remedy acts in one run of five", STILL, mostly_idle(FLAT, 0.2)),
    alike("2 seeds, one look", FLAT, (2,)),
    alike("3 seeds, one look", FLAT, (3,)),
    alike("5 seeds, one look", FLAT, (5,)),
    alike("looks at 2, 3, ..., 8 seeds", FLAT, (2, 3, 4, 5, 6, 7, 8)),
    alike("looks at 3, 4, ..., 8 seeds", FLAT, (3, 4, 5, 6, 7, 8)),
    alike("looks at 2, 3, ..., 8 seeds, heavy tails", heavy(3), (2, 3, 4, 5, 6, 7, 8)),
)
"""Cases in which at most 5 % of investigations may validate anything."""

EXCLUDED = (
    *(
        Case(
            f"{p:.0%} of treated runs collapse, the others gain, quiet runs (sd 0.01)",
            normal(0.01),
            collapsing(p, balanced(p), noise=0.01),
        )
        for p in (0.05, 0.1)
    ),
    *(
        Case(f"{p:.0%} of treated runs collapse, the others gain", FLAT, collapsing(p, balanced(p)))
        for p in (*CHANCES, 0.65)
    ),
    Case("50% of control runs collapse, the others gain", collapsing(0.5, balanced(0.5)), FLAT),
    Case("10% of treated runs fail by collapsing", FLAT, failing(0.1)),
    Case("long tail downwards (lognormal, sigma 0.25)", STILL, skewed(-1, 0.25)),
    Case("long tail downwards (lognormal, sigma 0.5)", STILL, skewed(-1, 0.5)),
    Case("long tail downwards (lognormal, sigma 1)", STILL, skewed(-1, 1.0)),
    Case("seeds correlated, 0.2", STILL, correlated(0.2)),
    Case("seeds correlated, 0.5", STILL, correlated(0.5)),
)
"""Cases in which nothing is promised; docs/verdicts.md says why of each."""

MEASURED = (
    ("H09, loss mask as attention", 0.196, 0.0168),
    ("H10, template drift", 0.056, 0.0139),
    ("H06, all weights instead of LoRA", 0.048, 0.0106),
    ("H44, data order", 0.034, 0.0382),
)
"""Effects on the lab, with the spread between seeds: examples/journal."""


def share(flags: NDArray[np.bool_]) -> Estimate:
    return cluster_mean(flags.astype(float), np.arange(len(flags)))


def percent(estimate: Estimate) -> str:
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def table(title: str, header: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def falsely_validated(case: Case, family: int, investigations: int) -> Estimate:
    """Share of investigations in which some hypothesis of the family is validated."""
    drawn = case.differences(np.random.default_rng(family), investigations, family)
    rule = case.rule(family)
    arms = [ends_of(drawn[:, arm], rule).validated for arm in range(family)]
    return share(np.any(arms, axis=0))


def error_rows(cases: Sequence[Case], investigations: int) -> Iterator[Sequence[str]]:
    for case in cases:
        cells = [percent(falsely_validated(case, k, investigations)) for k in FAMILIES]
        yield case.name, *cells


def student_alone(differences: Array, rule: Rule) -> Ends:
    """The rule without what was never seen: Student's interval at every look, as it is."""
    running = np.ones(len(differences), dtype=bool)
    validated, excluded = np.zeros_like(running), np.zeros_like(running)
    seeds = np.zeros(len(differences), dtype=np.int64)
    for look in rule.looks:
        seen = differences[:, :look]
        half = t_score(look - 1, 1 - rule.level) * seen.std(axis=1, ddof=1) / look**0.5
        mean = seen.mean(axis=1)
        seeds[running] = look
        moved = running & (mean > half) & (mean >= rule.smallest_effect)
        ruled_out = running & ~moved & (mean + half < rule.smallest_effect)
        validated, excluded = validated | moved, excluded | ruled_out
        running &= ~moved & ~ruled_out
    return Ends(validated, excluded, seeds)


def cliff_rows() -> Iterator[Sequence[str]]:
    """Three seeds about one mean, the closer the less is known of their noise."""
    rule = Rule()
    for off in (0.0, 2e-9, 1e-6, 1e-4, 1e-3, 2e-3, 5e-3, 1e-2):
        cells = []
        for mean in (0.06, 0.2):
            effect = effect_of([mean - off, mean, mean + off], rule)
            cells.append(f"[{effect.low:+.3f}, {effect.high:+.3f}]")
        yield f"± {off:g}", *cells


def missed_rows(investigations: int) -> Iterator[Sequence[str]]:
    for sd in SPREADS:
        rule = Rule()
        noise = np.random.default_rng(0).normal(0, sd, (investigations, rule.looks[-1]))
        ends = ends_of(rule.smallest_effect + noise, rule)
        still_open = ~ends.validated & ~ends.excluded
        yield f"{sd}", *(percent(share(s)) for s in (ends.validated, ends.excluded, still_open))


def naive_rows(investigations: int) -> Iterator[Sequence[str]]:
    """What looking again and again at a plain 95 % interval would do."""
    for looks in PLANS.values():
        drawn = np.random.default_rng(1).normal(0, 0.05, (investigations, looks[-1]))
        # A rule that plans one look has the plain 95 % interval there; here every look has it.
        plain = [ends_of(drawn, Rule(smallest_effect=TINY, looks=(n,))).validated for n in looks]
        kept = ends_of(drawn, Rule(smallest_effect=TINY, looks=looks)).validated
        shares = share(np.any(plain, axis=0)), share(kept)
        yield str(looks), f"{sequential_level(looks, 0.05):.4f}", *map(percent, shares)


def found(ends: Ends) -> str:
    return f"{ends.validated.mean():.0%}, {ends.seeds.mean():.1f} seeds"


def measured_rows(investigations: int) -> Iterator[Sequence[str]]:
    """The effects of the lab, had they been looked for again and again."""
    for name, effect, sd in MEASURED:
        drawn = effect + np.random.default_rng(3).normal(0, sd, (investigations, 6))
        for family in (1, 4):
            rule = Rule(family=family)
            cells = found(student_alone(drawn, rule)), found(ends_of(drawn, rule))
            yield name, f"{effect:+.3f}", f"{sd}", str(family), *cells


def power_rows(investigations: int) -> Iterator[Sequence[str]]:
    """By the size of the effect in reward, at the default rule."""
    for effect in (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3):
        yield f"{effect:g}", *(_found(effect, sd, Rule(), investigations) for sd in SPREADS)


def power_in_sd_rows(investigations: int) -> Iterator[Sequence[str]]:
    """By the size of the effect in standard deviations and the most seeds."""
    for effect in (1, 1.5, 2, 3, 4, 6, 10):
        rules = [Rule(smallest_effect=0.05, looks=looks) for looks in PLANS.values()]
        yield f"{effect:g}", *(_found(0.05 * effect, 0.05, rule, investigations) for rule in rules)


def _found(effect: float, sd: float, rule: Rule, investigations: int) -> str:
    noise = np.random.default_rng(2).normal(0, sd, (investigations, rule.looks[-1]))
    return found(ends_of(effect + noise, rule))


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
    families = [f"{k} hypotheses" if k > 1 else "1 hypothesis" for k in FAMILIES]
    spreads = [f"sd {sd}" for sd in SPREADS]
    print(f"{many:,} investigations a cell.")
    table(
        "No effect: investigations with any hypothesis falsely validated",
        ["how runs scatter", *families],
        error_rows(HELD, many),
    )
    table(
        "The same where nothing is promised",
        ["how runs scatter", *families],
        error_rows(EXCLUDED, many),
    )
    table(
        "No effect: looking after every seed, with a plain 95 % interval and with this rule",
        ["looks", "level of one look", "plain: falsely validated", "rule: falsely validated"],
        naive_rows(many),
    )
    table(
        "The interval of three seeds that lie close together",
        ["differences", "about 0.06", "about 0.2"],
        cliff_rows(),
    )
    table(
        "What counting the unseen costs: validated, and seeds used, for effects that were measured",
        ["effect", "size", "sd", "hypotheses", "Student's interval alone", "this rule"],
        measured_rows(many),
    )
    table(
        "A true effect of exactly the smallest that matters (0.05)",
        ["sd between seeds", "validated", "partial (wrong)", "inconclusive"],
        missed_rows(many),
    )
    table(
        "Validated, and seeds used, by effect in reward (at most 6 seeds, 1 hypothesis)",
        ["true effect", *spreads],
        power_rows(many),
    )
    table(
        "Validated, and seeds used, by effect in standard deviations (smallest effect: 1)",
        ["true effect", *(f"at most {most} seeds" for most in PLANS)],
        power_in_sd_rows(many),
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
