"""CONTRIBUTING's walks, walked: a hypothesis, its fault and a trainer, made in a copy of the tree.

What a walk changes is all that it changes: a new file each, and a line in each list that
CONTRIBUTING names. The suite's own rules about hypotheses and faults are then asked of the copy.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.front_door import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
CODE = "H70"
HYPOTHESIS = '''"""Every reward is a whole number of dozens, which no reward should be.

## What goes wrong
The reward counts eggs: it is multiplied by twelve somewhere, and clipping takes the rest away.

## Sign
The share of rollouts whose reward is a multiple of 12 other than 0. Above one half is a fault.

## Probe
None: the sign is read off the first batch.

## Experiment
The planted fault against none, matched seeds; the outcome is the held-out reward.

## Fix
Divide the reward by twelve, or find out who multiplied it.

## Not to be confused with
H40 hop-factor: the factor differs from problem to problem, here it is the same for all.

## References
Made up, to show how a hypothesis is added (tests/test_contributing.py).
"""

import numpy as np

from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.trace import Trace

MOST = 0.5
"""Share of rewards by the dozen. Healthy: 0."""


class RewardsByTheDozen(Hypothesis):
    id = "H70"
    name = "rewards-by-the-dozen"
    headline = "Your rewards come by the dozen."
    meaning = "What was meant as 1 is paid as 12."
    fix = "Divide the reward by twelve."
    mechanism = "Rewards come by the dozen; in the other arm they do not."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Are rewards multiples of twelve?"""
        reward = trace.rollouts["reward"]
        if not len(reward):
            return self.too_little("one rollout would do")
        share = float(np.mean((reward != 0) & (reward % 12 == 0)))
        level = Level.FAULT if share > MOST else Level.OK
        text = f"{share:.0%} of the rewards are dozens."
        return self.found(level, text, expected="none", looked_at=len(reward))
'''
FAULT = '''"""Rewards are multiplied by twelve.

Not from a report: made up, to show how a fault is added (tests/test_contributing.py).

Strength: the factor.
"""

from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class RewardByTheDozen(Fault):
    name: ClassVar[str] = "reward-by-the-dozen"
    hypothesis: ClassVar[str] = "H70"
    default: ClassVar[float] = 12
    bounds: ClassVar[tuple[float, float]] = (1, 144)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        def dozens(original: Any, *args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) * strength

        wrap(trainer, "_calculate_rewards", dozens)
'''
LIBRARY = '''"""Somebody's trainer, which knows nothing of flatline."""

import torch

from tests.loops import notebook
from tests.loops.lab import load_policy, problems


class Unwatched:
    def rewards(self, *args, **kwargs):
        pass


class EggTrainer:
    def __init__(self, defect):
        torch.manual_seed(0)
        self.defect = defect
        self.policy, self.words = load_policy()
        self.optim = torch.optim.AdamW(self.policy.parameters(), lr=1e-4)
        self.questions = problems(self.words, 4)

    def rollout(self, questions):
        one = lambda text, problem: notebook.experience(
            self.policy, self.words, text, problem, defect=self.defect
        )
        return [one(*question) for question in questions]

    def score(self, batch):
        return notebook.token_logprobs(self.policy, batch["ids"])

    def objective(self, batch, logprobs):
        return notebook.loss_of(batch, logprobs)

    def train_one_step(self):
        notebook.train(
            self.policy, self.words, self.optim, self.questions, Unwatched(), steps=1,
            defect=self.defect,
        )
'''
TRAINER = '''"""The trainer of the library `egg`, under the checkup."""

from typing import Any

from flatline.live.loop.loop import Loop
from flatline.live.loop.trainer import LoopTrainer
from flatline.live.protocol import Trainer


def hold(trainer: Any, correct: str | None) -> Trainer | None:
    """An `EggTrainer`, by its own functions."""
    if type(trainer).__module__ != "egg":
        return None
    return LoopTrainer(
        Loop(
            model=trainer.policy,
            optimizer=trainer.optim,
            tokenizer=trainer.words,
            prompts=trainer.questions,
            sample=trainer.rollout,
            logprobs=trainer.score,
            loss=trainer.objective,
            step=trainer.train_one_step,
            settings={"beta": 0, "tools": 0},
        )
    )
'''
CHECKED = """
import flatline, torch
from egg import EggTrainer

def state(trainer):
    return [*trainer.policy.state_dict().values(), torch.get_rng_state()]

for defect in (False, True):
    trainer = EggTrainer(defect)
    before = [one.clone() for one in state(trainer)]
    report = flatline.checkup(trainer)
    assert all(map(torch.equal, before, state(trainer)))
    print("checkup:", report.alarms[0].hypothesis if report.alarms else "healthy")
"""
LINES = {
    "hypotheses/symptoms.py": ('("H00",)', f'("H00", "{CODE}")'),
    "report/run_charts.py": ('    "H60": ', f'    "{CODE}": ("reward",),\n    "H60": '),
    "remedies/table.py": (
        '    "H60": ',
        f'    "{CODE}": "The script itself multiplies: divide by twelve in it.",\n    "H60": ',
    ),
}
"""File -> what stands there, and what it becomes: the lists beside the two registries."""
FIRES = f"""
import flatline
from flatline.trace import Trace
from tests.traces import healthy_rows

def diagnosed(factor):
    rows = healthy_rows(steps=3)
    rollouts = [row | {{"reward": factor * round(row["reward"])}} for row in rows["rollouts"]]
    found = flatline.diagnose(Trace.from_rows(**rows | {{"rollouts": rollouts}}))
    return {{one.hypothesis: one.level.value for one in found.findings}}["{CODE}"]

print("fires:", diagnosed(1), diagnosed(12))
"""
ASKED = """
from flatline.faults import find as fault
from flatline.hypotheses import HYPOTHESES, find
from flatline.remedies.table import REMEDIES, WITHOUT

assert {one.id for one in HYPOTHESES} == REMEDIES.keys() | WITHOUT.keys()
((planted, strength),) = fault("reward-by-the-dozen:24")
print("fault:", planted.hypothesis, find("rewards by the dozen").id, strength)
"""
RULES = (
    "tests/hypotheses/test_all.py",
    "tests/hypotheses/test_symptoms.py",
    "tests/hypotheses/test_arms.py",
    "tests/test_report_run.py::test_findings_point_to_charts_that_exist",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what the walk touches and of what judges it, with the walk done."""
    root = tmp_path_factory.mktemp("contributed")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "browser", "quality")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=skipped)
    package = root / "src" / "flatline"
    (package / "hypotheses" / "h70_rewards_by_the_dozen.py").write_text(HYPOTHESIS)
    (package / "faults" / "reward_by_the_dozen.py").write_text(FAULT)
    register(package / "hypotheses" / "__init__.py", "h70_rewards_by_the_dozen", "HYPOTHESES")
    register(package / "faults" / "__init__.py", "reward_by_the_dozen", "FAULTS")
    for file, (old, new) in LINES.items():
        text = (package / file).read_text()
        assert old in text, file
        (package / file).write_text(text.replace(old, new, 1))
    (root / "egg.py").write_text(LIBRARY)
    (package / "live" / "egg.py").write_text(TRAINER)
    trainers = package / "live" / "trainers.py"
    text = trainers.read_text().replace(
        "from flatline.live.loop ", "from flatline.live import egg\nfrom flatline.live.loop ", 1
    )
    trainers.write_text(text.replace("    loop.hold,\n", "    loop.hold,\n    egg.hold,\n", 1))
    return root


def register(registry, module, name):
    """The import, and one line at the end of the tuple."""
    made = "".join(word.capitalize() for word in re.sub(r"^h\d+_", "", module).split("_"))
    package = f"flatline.{registry.parent.name}"
    imported = f"from {package}.{module} import {made}\nfrom {package}.base"
    text = registry.read_text().replace(f"from {package}.base", imported, 1)
    listed = re.compile(rf"^({name}\b[^\n]*= \(\n.*?)^\)", flags=re.MULTILINE | re.DOTALL)
    assert listed.search(text)
    registry.write_text(listed.sub(rf"\1    {made}(),\n)", text, count=1))


def in_tree(tree, *command):
    """Run there, with the tree's own flatline."""
    path = os.pathsep.join(map(str, (tree / "src", tree)))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    return done.stdout


RULED = f"""
import pytest

print("rules:", int(pytest.main(["-q", "-p", "no:cacheprovider", *{RULES}])))
"""


@pytest.fixture(scope="module")
def said(tree):
    """What one process of the copy prints of all that was added: it imports torch once."""
    return in_tree(tree, "-c", FIRES + ASKED + CHECKED + RULED).splitlines()


def test_the_new_hypothesis_fires_where_it_should_and_not_where_it_should_not(said):
    assert "fires: ok fault" in said


def test_it_is_explained(tree):
    page = in_tree(tree, "-c", "from flatline.cli import main; main()", "explain", "70")
    assert "rewards-by-the-dozen" in page and "counts eggs" in page


def test_its_fault_is_known_by_name(said):
    assert f"fault: {CODE} {CODE} 24" in [line.removesuffix(".0") for line in said]


def test_the_suites_own_rules_hold_in_the_copy(said):
    assert "rules: 0" in said, "\n".join(said[-60:])


def test_the_new_trainer_comes_under_the_checkup_and_is_left_as_it_was(said):
    assert [one for one in said if "checkup" in one] == ["checkup: healthy", "checkup: H02"]


def test_the_guide_says_where_a_trainer_is_registered():
    walk = GUIDE.split("## Add a trainer")[1].split("\n## ")[0]
    assert (
        "`TRAINERS` in `src/flatline/live/trainers.py`" in walk
        and "`hold(trainer, correct)`" in walk
    )


def test_the_guide_names_every_list_that_the_walk_had_to_change():
    walk = GUIDE.split("## Add a hypothesis")[1].split("\n## ")[0]
    named = ("`HYPOTHESES`", "`FAULTS`", *(f"`{file}`" for file in LINES))
    assert [one for one in named if one not in walk] == []
