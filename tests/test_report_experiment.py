"""The page of an experiment: the verdict, every seed, the effect, and the plan as registered."""

import json

import pytest

from flatline.errors import ConfigError
from flatline.experiment import Arm, Look, Plan, Result, Role, Run, register
from flatline.report import page_of
from flatline.verdict import Mechanism, Presence, decide
from tests.report_pages import HOSTILE, Page

COMMAND = "python train.py --beta {kl_beta} --seed {seed}"
CONTROL, TREATED = [0.01, -0.02, 0.00], [0.30, 0.28, 0.33]


def plan_of(**changes) -> Plan:
    arms = (
        Arm(name="KL weight 0.04", role=Role.CONTROL, command=COMMAND, values={"kl_beta": "0.04"}),
        Arm(name="KL weight 0", role=Role.TREATED, command=COMMAND, values={"kl_beta": "0"}),
    )
    asked = {
        "name": "h03-kl",
        "hypothesis": "H03",
        "question": "Is the KL too heavy?",
        "factor": "kl_beta",
        "mechanism": "The KL term outweighs the advantages with the weight and not without it.",
        "arms": arms,
    }
    return Plan(**{**asked, **changes})


def run_of(arm: Arm, seed: int, value: float | None, text: str = "seen") -> Run:
    return Run(
        arm=arm.name,
        role=arm.role.value,
        seed=seed,
        folder=None,
        trace=None,
        status="failed" if value is None else "finished",
        value=value,
        before=None if value is None else 0.5,
        after=None if value is None else 0.5 + value,
        seconds=None if value is None else 90.0,
        level=None if value is None else "suspect",
        text=text,
    )


def save(folder, plan: Plan, runs: list[Run], *, looked: bool = True) -> None:
    mechanism = Mechanism(
        control=Presence.PRESENT, treated=Presence.ABSENT, direct=True, text="It flips."
    )
    differences = [b - a for a, b in zip(CONTROL, TREATED, strict=True)] if looked else []
    verdict = decide(plan.hypothesis, differences, plan.rule, mechanism)
    look = Look(seeds=3, which=(0, 1, 2), arm="KL weight 0", effect=verdict.effect, settled=True)
    looks = (look,) if looked else ()
    result = Result(plan=plan, runs=(), looks=looks, verdict=verdict).to_json(folder)
    listed = [{name: getattr(run, name) for name in Run.__slots__} for run in runs]
    (folder / "result.json").write_text(json.dumps({**result, "runs": listed}))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "h03-kl"
    plan = register(plan_of(), folder)
    runs = [
        run_of(arm, seed, value)
        for arm, values in ((plan.control, CONTROL), (plan.treated[0], TREATED))
        for seed, value in enumerate(values)
    ]
    save(folder, plan, runs)
    return folder


def test_the_verdict_comes_first_and_says_what_would_change_it(folder):
    page = Page(page_of(folder))
    assert page.text.index("H03 is validated") < page.text.index("What was measured")
    assert "What would change it:" in page.text
    assert "+0.307" in page.text and "present" in page.text


def test_every_seed_of_every_arm_is_a_point(folder):
    arms = Page(page_of(folder)).figures["arms"]
    points = {line["name"]: line["y"] for line in arms["data"] if line.get("text")}
    assert points == {"KL weight 0.04": CONTROL, "KL weight 0": TREATED}


def test_the_plan_is_shown_as_it_was_registered(folder):
    page = Page(page_of(folder))
    plan = json.loads((folder / "plan.json").read_text())
    for said in (plan["question"], plan["mechanism"], plan["digest"], plan["registered"]):
        assert said in page.text
    assert "3, 4, 5, 6" in page.text


def test_an_experiment_under_way_says_how_far_it_is(tmp_path):
    plan = register(plan_of(), tmp_path / "x")
    runs = [run_of(plan.control, 0, 0.01), run_of(plan.treated[0], 0, None, text=HOSTILE)]
    save(tmp_path / "x", plan, runs, looked=False)
    page = Page(page_of(tmp_path / "x"))
    assert "H03 is inconclusive" in page.text
    assert "2 of at most 12" in page.text and "not known yet" in page.text
    assert "failed" in page.text
    assert not page.all("img")
    assert set(page.figures) == {"arms"}


def test_a_result_of_another_plan_is_refused(folder):
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "plan": "other"}))
    with pytest.raises(ConfigError, match="Results of one plan say nothing about another"):
        page_of(folder)
