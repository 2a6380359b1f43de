"""Mutants: changes that nobody wrote, planted while a module is imported."""

import ast
import json
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flatline.bench.harm import Verdict
from flatline.bench.mutants import nursery
from flatline.bench.mutants.difference import Effect, difference
from flatline.bench.mutants.draw import Split, drawn, split_of
from flatline.bench.mutants.heard import Heard, Value
from flatline.bench.mutants.planting import Ground
from flatline.bench.mutants.results import healthy_runs, read
from flatline.bench.mutants.sites import Mutation, Sites
from flatline.bench.mutants.study import MUTANTS_FILE, SEEDS_FILE, Study, rows_in
from flatline.bench.mutants.tables import markdown, score
from flatline.cli import app
from flatline.errors import ConfigError

SOURCE = '''
"""A module."""
LIMIT = 3


class Trainer:
    def __init__(self, beta, epsilon_low, epsilon_high):
        self.beta = beta
        self.epsilon_low, self.epsilon_high = epsilon_low, epsilon_high

    def loss(self, logps, old_logps, advantages, mask):
        """What is minimised."""
        ratio = (logps - old_logps.detach()).exp()
        loss = -ratio * advantages
        if self.beta != 0.0 and mask is not None:
            loss = loss + self.beta * ratio
        kept = loss[:, 1:]
        total = (kept * mask).sum(dim=-1, keepdim=True)
        side = dict(padding_side="left", shift=False)
        total += self.epsilon_low
        total.clamp_(min=1)
        return total / mask.sum(), mask.sum(dim=-1), side
'''
EVERY = range(1, SOURCE.count("\n") + 1)


def mutations(source, module, lines):
    return Sites(source, module).at(lines)


def mutated(source, mutation):
    return Sites(source, mutation.module).put(mutation)


def changes(operator):
    return {
        (one.before, one.after)
        for one in mutations(SOURCE, "module", EVERY)
        if one.operator == operator
    }


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("arithmetic", "kept * mask", "kept / mask"),
        ("boolean", "False", "True"),
        ("sign", "-ratio", "ratio"),
        ("swapped call", "mask.sum()", "mask.mean()"),
        ("dropped call", "old_logps.detach()", "old_logps"),
        ("sibling variable", "logps", "old_logps"),
        ("removed statement", "loss = loss + self.beta * ratio", ""),
    ],
)
def test_an_operator_makes_the_mistake_that_it_is_named_after(operator, before, after):
    assert (before, after) in changes(operator)


def test_every_mutant_is_code_that_differs_in_one_place():
    plain = ast.unparse(ast.parse(SOURCE))
    every = mutations(SOURCE, "module", EVERY)
    texts = [ast.unparse(mutated(SOURCE, one)) for one in every]
    assert len(every) > 50
    assert plain not in texts
    for tree in (mutated(SOURCE, one) for one in every):
        compile(tree, "module.py", "exec")


def test_the_halves_are_decided_by_the_text_and_operators_take_turns():
    every = mutations(SOURCE, "module", EVERY)
    halves = {split: drawn(every, split, 1000, seed=0) for split in Split}
    assert {*every} == {one for some in halves.values() for one in some}
    assert all(split_of(one) is split for split, some in halves.items() for one in some)
    first = drawn(every, Split.DEVELOPMENT, 8, seed=0)
    assert len({one.operator for one in first}) == 8
    assert first == drawn(every, Split.DEVELOPMENT, 8, seed=0)


SHOP = """
import functools


def loud(function):
    @functools.wraps(function)
    def louder(*args):
        return function(*args)
    return louder


@loud
def total(price, count):
    return price * count
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A package whose function another module holds already."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("from shop.till import total\n")
    (package / "till.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def planted(ground, after):
    lines = range(SHOP.count("\n") + 1)
    ground.plant(next(one for one in ground.sites.at(lines) if one.after == after))


def test_a_planted_change_reaches_whoever_holds_the_function_and_no_file_is_written(shop):
    import shop as package

    held, ground = package.total, Ground("shop.till")
    planted(ground, "price / count")
    assert held(6, 3) == package.total(6, 3) == 2
    ground.clear()
    assert held(6, 3) == 18
    assert (shop / "till.py").read_text() == SHOP


def test_a_job_that_hangs_or_dies_is_told_and_further_jobs_can_be_added(tmp_path):
    def work(job):
        if job == "hangs":
            time.sleep(60)
        if job == "dies":
            raise MemoryError("no more")
        return {"done": job}

    waiting = deque(["hangs", "dies", "works"])
    found = {}
    for job, result in nursery.each(
        waiting, work, at_once=3, limit=lambda job: 2.0, log=lambda job: tmp_path / "log"
    ):
        found[job] = result
        if job == "works":
            waiting.append("added")
    assert found == {
        "hangs": {"error": "timeout"},
        "dies": {"error": "MemoryError: no more"},
        "works": {"done": "works"},
        "added": {"done": "added"},
    }


def value(*numbers):
    return Value(repr(numbers), np.array(numbers, dtype=float))


def heard(log="1", **stages):
    """One step of a training; what is not given is as always."""
    step = {
        "rows": [value(7)],
        "completions": [value(1, 2)],
        "rewards": [value(1, 0)],
        "loss": [value([1.0, 2.0], [3.0, 1.0])],
        "gradient": [value(3, 4)],
        "update": [value(1, 1)],
    }
    return Heard([step | {name: [one] for name, one in stages.items()}], [{"loss": log}])


@pytest.mark.parametrize(
    ("found", "effect", "stage"),
    [
        (heard(), Effect.SAME, ""),
        (heard(log="2"), Effect.LOG, ""),
        (heard(completions=value(1, 3), rewards=value(0, 0)), Effect.CHANGES, "completions"),
        (heard(update=value(1, -1)), Effect.CHANGES, "update"),
        (heard(gradient=value(3, 4 + 1e-7)), Effect.ROUNDING, "gradient"),
        (heard(gradient=value(30, 40)), Effect.SCALE, "gradient"),
        (heard(gradient=value(30, 40), update=value(10, 10)), Effect.CHANGES, "gradient"),
        (heard(gradient=value(float("nan"), 4)), Effect.CHANGES, "gradient"),
        (Heard([], []), Effect.CHANGES, "rows"),
    ],
)
def test_what_a_change_does_and_where_it_begins_is_measured(found, effect, stage):
    assert difference(heard(), found)[:2] == (effect, stage)


def row(effect, *alarms, number=0, **told):
    change = Mutation("trainer.py", number, "sign", 12, "Trainer.loss", "-x", "x").to_json()
    said = [{"hypothesis": code, "text": "so"} for code in alarms]
    checkup = {"alarms": said, "seconds": 4.0}
    return {
        "mutation": change,
        "effect": effect,
        "checkup": checkup,
        "seconds": 2.0,
        "source": "abc",
        **told,
    }


@pytest.fixture
def kept_study(tmp_path):
    """Keeps rows as a study does; returns what makes it."""

    def make(rows, seeds=(), name="one", split=Split.TEST):
        made = Study(
            folder=tmp_path / name,
            script=Path("train.py"),
            modules=("trainer.py",),
            split=split,
            count=9,
        )
        made.begin("1234567")
        for one in rows:
            made.keep(MUTANTS_FILE, one)
        for one in seeds:
            made.keep(SEEDS_FILE, one)
        return made

    return make


def figures_of(folder):
    return score(read(folder), healthy_runs(folder))


def test_silence_on_a_change_and_an_alarm_on_none_are_both_listed(kept_study, tmp_path):
    rows = [row("changes", "H56", stage="loss", step=1), row("changes"), row("same")]
    kept_study([*rows, row("same", "H24")])
    found = figures_of(tmp_path)["splits"]["test"]
    assert found["effects"]["changes"] == {"mutants": 2, "looked at": 2, "alarm": 1}
    assert found["shares"]["all"]["change nothing: alarm"]["count"] == 1
    assert len(found["silent"]) == len(found["false alarms"]) == 1
    assert found["seconds"] == {"a mutant": 6.0, "a mutant with checkup": 6.0}
    assert "| sign | 2 | 1 | 1 |" in markdown(figures_of(tmp_path))


def trained(number, *rewards, **told):
    change = None if number is None else row("changes", number=number)["mutation"]
    return [
        {"mutation": change, "seed": seed, "reward": reward, **told}
        for seed, reward in enumerate(rewards)
    ]


def test_harm_is_what_the_same_seeds_lose_and_a_training_that_breaks_down_hurts(
    kept_study, tmp_path
):
    broken = {"mutation": row("changes", number=3)["mutation"], "seed": 0, "error": "ValueError"}
    silent = {"alarms": []}
    kept_study(
        [row("changes", number=k) for k in (1, 2, 3, 4)],
        [
            *trained(None, 0.80, 0.82, 0.78, 0.81, diagnosis=silent),
            *trained(1, 0.50, 0.53, 0.49, 0.52, diagnosis={"alarms": [{"hypothesis": "H24"}]}),
            *trained(2, 0.81, 0.80, 0.79, 0.80),
            broken,
            *trained(4, 0.1, 0.1),
        ],
    )
    verdicts = [one.harm and one.harm.verdict for one in read(tmp_path)]
    assert verdicts == [Verdict.HURTS, Verdict.HARMLESS, Verdict.HURTS, Verdict.OPEN]
    shares = figures_of(tmp_path)["splits"]["test"]["shares"]["all"]
    assert shares["hurt: alarm"]["count"] == 0
    assert shares["hurt: alarm, or one in the diagnosis"]["count"] == 1
    assert figures_of(tmp_path)["unchanged scripts"]["flatline, diagnosis"] == 0


def test_seeds_that_were_trained_are_not_trained_again(kept_study):
    rows = [row("changes", number=1), row("scale", number=2), row("same", number=3)]
    study = kept_study(rows, trained(1, 0.5))
    assert [one and one.number for one in study.untrained(0)] == [None, 2]
    assert [one and one.number for one in study.untrained(1)] == [None, 1, 2]


def test_a_half_written_last_result_does_not_count_and_the_next_one_is_whole(kept_study):
    study = kept_study([row("same")])
    file, whole = study.folder / MUTANTS_FILE, json.dumps(row("same"))
    with file.open("a") as more:
        more.write(whole[:20])
    assert len(rows_in(file)) == 1
    study.begin("1234567")
    study.keep(MUTANTS_FILE, row("same"))
    assert len(rows_in(file)) == 2


def test_results_of_other_settings_are_not_mixed(kept_study):
    kept_study([row("same")])
    with pytest.raises(ConfigError, match="another study"):
        kept_study([], split=Split.DEVELOPMENT)


def test_a_folder_without_results_says_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match="flatline bench mutants run"):
        read(tmp_path)


def test_the_page_shows_the_shares_of_the_kept_mutants_that_nobody_had_seen():
    root = Path(__file__).parents[1]
    kept = root / "docs/mutants/fifth"
    told = CliRunner().invoke(app, ["bench", "mutants", "report", str(kept)])
    lines = told.output.splitlines()
    shares = [line for line in lines if line.startswith("| change the training: ")]
    assert len(shares) == 1
    assert shares[0] in (root / "docs/mutants.md").read_text(encoding="utf-8")
