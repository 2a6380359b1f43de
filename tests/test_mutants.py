"""Mutants: changes that nobody wrote, planted while a module is imported."""

import ast
import json
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest

from flatline.bench.mutants import nursery, study
from flatline.bench.mutants.draw import Split, drawn, split_of
from flatline.bench.mutants.operators import OPERATORS
from flatline.bench.mutants.planting import lines_executed
from flatline.bench.mutants.sites import Mutation, mutated, mutations
from flatline.bench.mutants.tables import markdown, score
from flatline.bench.mutants.trial import Effect, effect_of
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


def changes(operator):
    return {
        (one.before, one.after)
        for one in mutations(SOURCE, "module", EVERY)
        if one.operator == operator
    }


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("comparison", "self.beta != 0.0", "self.beta == 0.0"),
        ("arithmetic", "kept * mask", "kept / mask"),
        ("dropped operand", "total / mask.sum()", "total"),
        ("constant", "0.0", "1.0"),
        ("boolean", "False", "True"),
        ("sign", "-ratio", "ratio"),
        ("slice", "1:", ":"),
        (
            "axis",
            "(kept * mask).sum(dim=-1, keepdim=True)",
            "(kept * mask).sum(dim=0, keepdim=True)",
        ),
        ("padding side", "'left'", "'right'"),
        ("swapped call", "mask.sum()", "mask.mean()"),
        ("dropped call", "old_logps.detach()", "old_logps"),
        ("argument", "total.clamp_(min=1)", "total.clamp_()"),
        ("sibling variable", "logps", "old_logps"),
        ("sibling variable", "self.epsilon_low", "self.epsilon_high"),
        ("removed statement", "total += self.epsilon_low", ""),
        ("removed statement", "loss = loss + self.beta * ratio", ""),
    ],
)
def test_an_operator_makes_the_mistake_that_it_is_named_after(operator, before, after):
    assert (before, after) in changes(operator)


def test_every_operator_finds_something_to_change():
    assert {one.operator for one in mutations(SOURCE, "module", EVERY)} == set(OPERATORS)


def test_every_mutant_is_code_that_differs_in_one_place():
    plain = ast.unparse(ast.parse(SOURCE))
    every = mutations(SOURCE, "module", EVERY)
    texts = [ast.unparse(mutated(SOURCE, one)) for one in every]
    assert len(every) > 50
    assert plain not in texts
    for tree in (mutated(SOURCE, one) for one in every):
        compile(tree, "module.py", "exec")


def test_a_mutant_keeps_the_lines_of_everything_else():
    one = next(one for one in mutations(SOURCE, "module", EVERY) if one.operator == "sign")
    lines = [node.lineno for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Return)]
    tree = mutated(SOURCE, one)
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)] == lines


def test_only_lines_that_run_are_changed_and_nothing_that_runs_on_import():
    assert {one.line for one in mutations(SOURCE, "module", [14])} == {14}
    assert "Trainer.loss" in {one.function for one in mutations(SOURCE, "module", EVERY)}
    assert not mutations(SOURCE, "module", [3])


def test_a_mutant_of_another_release_is_refused_with_what_to_type():
    one = next(one for one in mutations(SOURCE, "module", EVERY) if one.before == "-ratio")
    with pytest.raises(ConfigError, match="another release"):
        mutated(SOURCE.replace("ratio", "factor"), one)


def test_the_halves_are_decided_by_the_text_and_operators_take_turns():
    every = mutations(SOURCE, "module", EVERY)
    halves = {split: drawn(every, split, 1000, seed=0) for split in Split}
    assert {*every} == {one for some in halves.values() for one in some}
    assert all(split_of(one) is split for split, some in halves.items() for one in some)
    first = drawn(every, Split.DEVELOPMENT, 8, seed=0)
    assert len({one.operator for one in first}) == 8
    assert first == drawn(every, Split.DEVELOPMENT, 8, seed=0)


def test_a_planted_change_is_what_an_import_gets_and_no_file_is_written(tmp_path):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("from shop.till import total\n")
    till = "def total(price, count):\n    return price * count\n"
    (package / "till.py").write_text(till)
    one = next(one for one in mutations(till, "shop.till", [2]) if one.after == "price / count")
    code = (
        "import json, sys, shop\n"
        "from flatline.bench.mutants.planting import plant\n"
        "from flatline.bench.mutants.sites import Mutation\n"
        "before = shop.total(6, 3)\n"
        "plant(Mutation(**json.loads(sys.argv[1])))\n"
        "import shop\n"
        "print(before, shop.total(6, 3))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, json.dumps(one.to_json())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["18", "2.0"]
    assert (package / "till.py").read_text() == till


def test_the_lines_that_ran_are_known():
    file = Path(__file__)
    with lines_executed([file]) as seen:
        _first_branch(True)
    lines = file.read_text().splitlines()
    assert any("took the first" in lines[at - 1] for at in seen[file])
    assert not any("took the other" in lines[at - 1] for at in seen[file])


def _first_branch(yes):
    if yes:
        return "took the first"
    return "took the other"


def test_a_job_that_hangs_or_dies_is_told_and_further_jobs_can_be_added(tmp_path):
    def work(job):
        if job == "hangs":
            time.sleep(60)
        if job == "dies":
            raise MemoryError("no more")
        return {"done": job}

    waiting = deque(["hangs", "dies", "works"])
    found = {}
    for job, result in nursery.each(waiting, work, at_once=3, limit=2.0, log=tmp_path / "log.txt"):
        found[job] = result
        if job == "works":
            waiting.append("added")
    assert found == {
        "hangs": {"error": "timeout"},
        "dies": {"error": "MemoryError: no more"},
        "works": {"done": "works"},
        "added": {"done": "added"},
    }


def test_a_run_is_the_same_only_to_the_last_bit():
    plain = {"steps": [{"weights": "a"}], "log": [{"loss": "1"}]}
    assert effect_of(plain, plain) is Effect.SAME
    assert effect_of(plain, {**plain, "log": [{"loss": "2"}]}) is Effect.LOG
    assert effect_of(plain, {**plain, "steps": [{"weights": "b"}]}) is Effect.CHANGES
    assert effect_of(plain, {"error": "ValueError: x"}) is Effect.STOPS
    assert effect_of(plain, {"error": "timeout"}) is Effect.HANGS


def row(effect, *alarms, number=0):
    change = Mutation("trainer.py", number, "sign", 12, "Trainer.loss", "-x", "x").to_json()
    told = [{"hypothesis": code, "text": "so"} for code in alarms]
    return {"mutation": change, "effect": effect, "checkup": {"alarms": told}}


def test_silence_on_a_change_and_an_alarm_on_none_are_both_listed():
    found = score([row("changes", "H09"), row("changes"), row("same"), row("same", "H24")])
    assert found["effects"]["changes"] == {"mutants": 2, "looked at": 2, "alarm": 1}
    assert found["effects"]["same"]["alarm"] == 1
    assert len(found["silent"]) == len(found["false alarms"]) == 1
    assert "| sign | 2 | 1 |" in markdown(found)


def test_a_half_written_last_result_does_not_count(tmp_path):
    whole = json.dumps(row("same"))
    (tmp_path / study.RESULTS_FILE).write_text(f"{whole}\n{whole[:20]}")
    assert len(study.results(tmp_path)) == 1


def test_a_result_that_follows_a_half_written_one_is_whole(tmp_path):
    file, whole = tmp_path / study.RESULTS_FILE, json.dumps(row("same"))
    file.write_text(f"{whole}\n{whole[:20]}")
    study._whole_results(tmp_path)
    with file.open("a") as more:
        more.write(f"{whole}\n")
    assert len(study.results(tmp_path)) == 2
