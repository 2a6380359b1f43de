"""Mutants: changes that nobody wrote, planted while a module is imported."""

import ast
import json
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flatline.bench.harm import Verdict
from flatline.bench.mutants import nursery
from flatline.bench.mutants.difference import Effect, difference
from flatline.bench.mutants.draw import Split, drawn, split_of
from flatline.bench.mutants.heard import Heard, Value, _unpadded, kept, opened
from flatline.bench.mutants.operators import OPERATORS
from flatline.bench.mutants.planting import Ground, lines_executed
from flatline.bench.mutants.results import healthy_runs, missed_in, read, stages_of
from flatline.bench.mutants.sites import Mutation, Sites
from flatline.bench.mutants.study import MUTANTS_FILE, SEEDS_FILE, Study, rows_in
from flatline.bench.mutants.tables import markdown, score
from flatline.bench.mutants.work import _Bench, _Job
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


def test_what_is_left_after_a_test_is_divided_anew_and_wherever_a_script_lies():
    every = mutations(SOURCE, "module", EVERY)
    left = drawn(every, Split.DEVELOPMENT, 1000, seed=0)
    anew = [drawn(left, split, 1000, seed=0, anew=True) for split in Split]
    assert all(anew)
    assert {*left} == {one for some in anew for one in some}
    moved = [replace(one, module="/elsewhere/module") for one in every]
    assert [*map(split_of, every)] == [*map(split_of, moved)]


def test_a_mutant_of_another_release_is_refused_with_what_to_type():
    one = next(one for one in mutations(SOURCE, "module", EVERY) if one.before == "-ratio")
    with pytest.raises(ConfigError, match="the installed release is not"):
        mutated(SOURCE.replace("ratio", "factor"), one)


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


class Till:
    def open(self):
        self.coins = 3


class OldTill(Till):
    def open(self):
        super().open()
        self.notes = 2


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


def test_a_method_can_lose_its_call_of_super(shop):
    ground = Ground("shop.till")
    from shop.till import OldTill

    removed = [one for one in ground.sites.at(range(40)) if one.before == "super().open()"]
    ground.plant(next(one for one in removed if one.after == ""))
    till = OldTill()
    till.open()
    assert vars(till) == {"notes": 2}


def test_a_module_that_is_not_there_is_refused_with_what_to_type():
    with pytest.raises(ConfigError, match="There is no source"):
        Ground("no.such.module")


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


def test_every_job_has_a_folder_of_its_own(tmp_path):
    def work(job):
        Path("run").mkdir()
        return {"folder": str(Path.cwd())}

    done = nursery.each(
        deque("ab"), work, at_once=2, limit=lambda job: 20.0, log=lambda job: tmp_path / "log"
    )
    folders = [found["folder"] for _, found in done]
    assert len({*folders}) == 2
    assert not any(Path(one).exists() for one in folders)


def value(*numbers):
    return Value(repr(numbers), np.array(numbers, dtype=float))


FRACTIONS = value(1, 2)._replace(digest="1.0, 2.0")
"""The usual completions in numbers of another kind."""


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
        (heard(dealt=value(1, 2), gradient=value(9, 4)), Effect.CHANGES, "rows"),
        (heard(rewards=value(0, 0), gradient=value(9, 4)), Effect.CHANGES, "rewards"),
        (heard(dealt=value(2, 1)), Effect.ROUNDING, "rows"),
        (heard(completions=FRACTIONS), Effect.ROUNDING, "completions"),
        (heard(update=value(1, -1)), Effect.CHANGES, "update"),
        (heard(gradient=value(3, 4 + 1e-7)), Effect.ROUNDING, "gradient"),
        (heard(gradient=value(30, 40)), Effect.SCALE, "gradient"),
        (heard(gradient=value(30, 40), update=value(10, 10)), Effect.CHANGES, "gradient"),
        (heard(gradient=value(-3, -4)), Effect.CHANGES, "gradient"),
        (heard(gradient=value(float("nan"), 4)), Effect.CHANGES, "gradient"),
        (Heard([], []), Effect.CHANGES, "rows"),
    ],
)
def test_what_a_change_does_and_where_it_begins_is_measured(found, effect, stage):
    assert difference(heard(), found)[:2] == (effect, stage)


def test_what_the_script_itself_asks_otherwise_is_no_defect_whatever_it_changes():
    asked = heard()._replace(asked="batch")
    assert difference(heard(), asked, asks=True).effect is Effect.ASKED
    assert difference(heard(), asked).effect is Effect.SAME
    changed = heard(update=value(1, -1))._replace(asked="batch")
    assert difference(heard(), changed, asks=True).effect is Effect.ASKED


def test_tokens_out_of_proportion_are_the_ratio_and_rows_out_of_proportion_the_loss():
    rows = value([2.0, 4.0], [-3.0, -1.0])
    tokens = value([1.0, 4.0], [3.0, 1.0])
    assert difference(heard(), heard(loss=rows)).stage == "loss"
    assert difference(heard(), heard(loss=tokens)).stage == "ratio and KL"


def test_what_was_heard_comes_back_from_its_file(tmp_path):
    once = heard()
    again = opened(json.loads(json.dumps(kept(once, tmp_path / "numbers"))), tmp_path / "numbers")
    assert difference(once, again).effect is Effect.SAME
    assert again.steps[0]["loss"][0].numbers.shape == (2, 2)


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


def test_a_silent_change_of_what_the_script_alone_can_say_is_told_apart(kept_study, tmp_path):
    kept_study(
        [row("changes", stage="rewards"), row("changes", stage="loss"), row("changes", "H52")]
    )
    found = figures_of(tmp_path)["splits"]["test"]
    assert len(found["silent"]) == len(found["wishes"]) == 1
    shares = found["shares"]["all"]
    assert shares["change the training: alarm, or refused by name"]["of"] == 3
    assert shares["the same, without what contradicts no statement of intent"]["of"] == 2


def test_what_is_the_same_here_and_changes_elsewhere_is_no_false_alarm(kept_study, tmp_path):
    kept_study([row("same here, changes elsewhere", "H28"), row("same", "H24")])
    found = figures_of(tmp_path)["splits"]["test"]
    assert len(found["elsewhere"]) == len(found["false alarms"]) == 1


def test_an_alarm_on_what_is_the_same_is_looked_at_in_every_other_study_of_the_code(tmp_path):
    names = (("a", "trainer.py"), ("b", "other.py"), ("c", "trainer.py"), ("d", "trainer.py"))
    studies = [
        Study(
            folder=tmp_path / name,
            script=Path(f"{name}.py"),
            modules=(module,),
            split=Split.TEST,
            count=1,
        )
        for name, module in names
    ]
    bench = object.__new__(_Bench)
    bench._studies = studies
    change = Mutation("trainer.py", 0, "sign", 12, "Trainer.loss", "-x", "x")
    job = _Job(studies[0], "checkup", change)
    assert bench._once_more(job, row("same")) is None
    assert bench._once_more(job, row("changes", "H24")) is None
    for effect in ("same", "log only", "rounding"):
        assert bench._once_more(job, row(effect, "H24")).seed == 2
    other = job._replace(what="elsewhere", seed=2)
    assert bench._once_more(other, row("same", "H24")) == other._replace(seed=3)
    told = bench._elsewhere(other, {"stage": "loss"})
    assert told["effect"] == "same here, changes elsewhere"
    assert told["elsewhere"] == {"script": "c.py", "arguments": [], "stage": "loss"}


def test_an_alarm_on_what_no_other_study_shows_is_looked_at_some_steps_later(tmp_path):
    only = Study(folder=tmp_path, script=Path("a.py"), modules=("a.py",), split=Split.TEST, count=1)
    bench = object.__new__(_Bench)
    bench._studies, bench._steps_later = [only], lambda study: 10
    change = Mutation("a.py", 0, "sign", 12, "Trainer.loss", "-x", "x")
    later = bench._once_more(_Job(only, "checkup", change), row("rounding", "H59"))
    assert later.what == "later"
    assert bench._once_more(later, row("rounding", "H59")) is None
    told = bench._elsewhere(later, {"stage": "rewards"})
    assert told["elsewhere"] == {"script": "a.py", "arguments": [], "steps": 10, "stage": "rewards"}


def test_once_time_is_up_only_mutants_that_were_begun_are_finished():
    bench = object.__new__(_Bench)
    bench._until = 0.0
    asked = deque(_Job(None, what) for what in ("compare", "checkup", "seed", "elsewhere"))
    bench._drop_if_late(asked)
    assert [job.what for job in asked] == ["checkup", "elsewhere"]


def test_splits_are_counted_apart_and_the_commit_is_told(kept_study, tmp_path):
    kept_study([row("changes")], name="a")
    kept_study([row("changes"), row("same")], name="b", split=Split.DEVELOPMENT)
    found = figures_of(tmp_path)
    assert {name: one["mutants"] for name, one in found["splits"].items()} == {
        "development": 2,
        "test": 1,
    }
    assert "commit 1234567, source abc" in found["runs"][0]


def test_the_stage_of_an_alarm_is_what_its_hypothesis_declares():
    assert stages_of("H56", 1) == {"loss"}
    assert "rows" in stages_of("H44", 1)
    assert "completions" in stages_of("H59", 2)
    assert "completions" not in stages_of("H59", 1)
    assert "gradient" in stages_of("H54", 1) and "gradient" not in stages_of("H53", 1)
    assert "loss" in stages_of("H55", 1) and "ratio and KL" not in stages_of("H56", 1)
    assert "rewards" in stages_of("H59", 1, loop=True)
    assert "rewards" not in stages_of("H59", 1) | stages_of("H55", 1, loop=True)


def test_what_pads_a_batch_is_not_heard_as_a_part_of_it():
    ids, mask = torch.tensor([[5, 6, 0], [7, 0, 0]]), torch.tensor([[1, 1, 0], [0, 0, 0]])
    batch = {"completion_ids": ids, "completion_mask": mask}
    other = {**batch, "completion_ids": torch.tensor([[5, 6, 9], [7, 0, 0]])}
    assert _unpadded(batch)["completion_ids"].tolist() == [[5, 6, -1], [7, 0, 0]]
    assert torch.equal(_unpadded(batch)["completion_ids"], _unpadded(other)["completion_ids"])
    assert _unpadded({"completion_ids": ids})["completion_ids"] is ids


def test_the_changed_line_is_looked_for_among_the_first_five_shown(kept_study, tmp_path):
    def place(line, function="Trainer.loss", file="lib/trainer.py"):
        return {"file": file, "line": line, "function": function, "source": ""}

    def found(*places, number):
        one = row("changes", "H56", number=number, statement=11)
        one["checkup"]["alarms"][0]["where"] = list(places)
        return one

    kept_study(
        [
            found(place(12), number=1),
            found(*[place(1, "Trainer.other")] * 4, place(11), number=2),
            found(*[place(1)] * 5, place(12), number=3),
            found(place(12, file="lib/other.py"), number=4),
        ]
    )
    shares = figures_of(tmp_path)["splits"]["test"]["shares"]["all"]
    assert shares["with an alarm: the changed line among the first 5"]["count"] == 2
    assert shares["with an alarm: its function first"]["count"] == 2


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


def test_no_change_is_drawn_that_another_study_has_looked_at_whatever_its_line_is_now(kept_study):
    looked_at = kept_study([row("changes", number=1)]).folder
    change = Mutation("trainer.py", 5, "sign", 40, "Trainer.loss", "-x", "x")
    other = replace(change, number=6, before="-y")
    study = replace(kept_study([], name="two"), beside=looked_at)
    every = [
        one
        for split in Split
        for one in replace(study, split=split).waiting({"trainer.py": [change, other]})
    ]
    assert every == [other]


def test_only_what_a_study_missed_is_tried_again_and_it_is_no_test_any_more(kept_study):
    shown = [{"file": "trainer.py", "line": 12, "function": "Trainer.loss"}]
    named = {"hypothesis": "H56", "text": "", "where": shown}
    rows = [row("changes", "H56", number=at, stage="loss") for at in range(3)]
    rows[0]["checkup"]["alarms"] = [named]
    rows[2]["checkup"]["alarms"] = []
    for at, one in enumerate(rows):
        one["mutation"] |= {"before": f"-{at}"}
    missed = missed_in(kept_study(rows).folder)
    assert {change[3] for change in missed} == {"-1", "-2"}
    again = replace(kept_study([], name="two"), only=missed)
    assert again.to_json()["split"] == "again"
    possible = [Mutation(**one["mutation"]) for one in rows]
    assert [one.before for one in again.waiting({"trainer.py": possible})] == ["-1", "-2"]


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
