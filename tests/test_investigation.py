"""From hypotheses to verdicts, with runs and checkups that are pretended."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flatline.config import RunConfig
from flatline.errors import ConfigError, TooFewSeeds
from flatline.experiment.outcome import Sight
from flatline.faults import find as find_faults
from flatline.hypotheses import HYPOTHESES, find
from flatline.investigation import Setup, inquiry, investigate, looks
from flatline.investigation.conclusion import ladder_verdict
from flatline.investigation.plans import plan_for
from flatline.verdict import Presence, Ruling
from tests.experiments import Pretended, outcome_of

PRESET = RunConfig(fault="verifiers-0.1.3", kl_beta=0.04)
HEALTHY = RunConfig()
FIRES = {"H09": "fault", "H03": "suspect"}
"""What the pretended setup shows."""


class Silent:
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def progress(self, progress):
        pass


def sights(levels):
    codes = [one.id for one in HYPOTHESES]
    return {
        code: Sight(level=levels.get(code, "ok"), text=f"{code} was looked at.", proven=False)
        for code in codes
    }


def planted(job):
    """Hypotheses of the faults that a run has."""
    line = next((x for x in job.config.splitlines() if x.startswith("fault")), None)
    text = json.loads(line.partition("=")[2]) if line else None
    return {one.fault.hypothesis for one in find_faults(text)}


def broken_mask(job):
    """Nothing is learnt while the mask is wrong; the KL explodes with it."""
    wrong = "H09" in planted(job)
    blind = "learning_rate = 0.0" in job.config or "reward-noise" in job.config
    levels = {"H09": "fault"} if wrong else {}
    if wrong and "kl_beta = 0.04" in job.config:
        levels["H03"] = "suspect"
    gain = 0.0 if wrong or blind else 0.3
    noise = 0.005 * (job.seed % 3) * (1 if "H03" in levels else -1)
    return outcome_of(gain + noise, findings=sights(levels))


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Investigate a config; the checkup says what `FIRES` says unless told otherwise."""
    monkeypatch.setattr(inquiry.Inquiry, "_replayed", lambda *_: "")

    def ask(config, codes, came_to, *, checkup=None, **changes):
        told = sights(FIRES if config.fault else {})
        monkeypatch.setattr(inquiry, "checkup_of", checkup or (lambda arm, runs, say: told))
        setup = Setup(
            config=config, runs=tmp_path / "runs", experiments=tmp_path / "experiments", **changes
        )
        executor = Pretended(came_to)
        listener = Silent()
        found = list(investigate(setup, [find(code) for code in codes], executor, listener))
        return found, executor, listener

    return ask


def rulings(found):
    return {one.verdict.hypothesis: one.verdict.ruling for one in found}


def test_the_cause_is_validated_its_symptom_is_partial_and_the_rest_is_ruled_out(asked):
    found, _, _ = asked(PRESET, ["H09", "H03", "H06", "H02"], broken_mask)
    assert rulings(found) == {
        "H09": Ruling.VALIDATED,
        "H03": Ruling.PARTIAL,
        "H06": Ruling.INVALIDATED,
        "H02": Ruling.INVALIDATED,
    }


def test_hypotheses_share_the_runs_of_the_control(asked):
    _, executor, _ = asked(PRESET, ["H09", "H03"], broken_mask)
    controls = [arm for arm, _ in executor.started if arm == "as it is"]
    assert len(controls) == 3
    again = [seed for arm, seed in executor.started if arm.startswith("with mask")]
    assert not set(again) & {0, 1, 2}


def test_a_mechanism_that_is_absent_costs_no_further_run(asked):
    found, executor, listener = asked(PRESET, ["H06"], broken_mask)
    assert {arm for arm, _ in executor.started} == {"as it is"}
    assert found[0].verdict.confidence == "high"  # a probe saw it
    assert any("nothing needs to be trained" in text for text in listener.said)


def test_a_healthy_setup_has_no_cause(asked):
    def healthy(job):
        return outcome_of(0.3 + 0.01 * job.seed, findings=sights({}))

    codes = [one.id for one in HYPOTHESES if one.id != "H00"]
    found, executor, _ = asked(HEALTHY, codes, healthy)
    assert set(rulings(found).values()) == {Ruling.INVALIDATED}
    assert len(executor.started) == 3


def test_a_mechanism_that_no_setting_takes_away_is_said_to_be_so(asked):
    def odd(job):
        return outcome_of(0.0, findings=sights({"H02": "fault"}))

    found, _, _ = asked(HEALTHY, ["H02"], odd)
    assert found[0].verdict.ruling is Ruling.INCONCLUSIVE
    assert "--command" in found[0].verdict.would_change


def test_a_probe_of_both_arms_shows_a_mechanism_that_no_run_can_show(asked):
    def dumb(job):
        return replace(broken_mask(job), findings=sights({"H09": "unknown"}))

    def checkup(arm, runs, say):
        wrong = "H09" in {one.fault.hypothesis for one in find_faults(arm.config.fault)}
        return sights({"H09": "fault"} if wrong else {})

    found, _, _ = asked(PRESET, ["H09"], dumb, checkup=checkup)
    assert found[0].verdict.ruling is Ruling.VALIDATED
    assert found[0].verdict.mechanism.direct


def test_the_family_counts_what_could_be_tested_on_these_runs(asked):
    found, _, _ = asked(PRESET, ["H09"], broken_mask)
    assert found[0].plan["family"] == 2  # H09 and H03 fire, and each has an experiment


def test_an_experiment_of_too_few_seeds_to_decide_is_not_begun(asked, tmp_path):
    four = sights(dict.fromkeys(("H09", "H03", "H04", "H10"), "suspect"))
    few = {"looks": (3,), "checkup": lambda *_: four}

    def four_fire(job):
        return outcome_of(0.01 * job.seed, findings=four)

    with pytest.raises(TooFewSeeds) as told:
        asked(PRESET, ["H09"], four_fire, **few)
    assert told.value.needed == 4
    assert not list((tmp_path / "experiments").rglob("plan.json"))
    found, executor, _ = asked(PRESET, ["H09"], four_fire, **few, train_anyway=True)
    assert found[0].plan["family"] == 4
    assert any(arm != "as it is" for arm, _ in executor.started)


def test_a_registered_experiment_is_taken_up_though_more_hypotheses_are_known_by_now(
    asked, monkeypatch
):
    asked(PRESET, ["H09"], broken_mask)
    monkeypatch.setattr(inquiry, "HYPOTHESES", [find("H09")])
    found, executor, _ = asked(PRESET, ["H09"], broken_mask)
    assert found[0].plan["family"] == 2
    assert executor.started == []


def test_every_plan_has_arms_that_cannot_learn():
    setup = Setup(config=PRESET, runs=Path("runs"), experiments=Path("experiments"))
    arms = find("H09").experiment(PRESET)
    plan = plan_for(find("H09"), arms, setup, family=1)
    frozen, random = plan.negative
    assert frozen.config.learning_rate == 0
    assert random.config.fault.endswith("+reward-noise:1000")
    assert "mask-as-attention" not in random.config.fault


@pytest.mark.parametrize(
    "level, ruling, presence",
    [
        ("suspect", Ruling.VALIDATED, Presence.PRESENT),
        ("ok", Ruling.INVALIDATED, Presence.ABSENT),
        ("unknown", Ruling.INCONCLUSIVE, Presence.UNKNOWN),
    ],
)
def test_the_ladder_has_a_verdict_of_its_own(level, ruling, presence):
    setup = Setup(config=PRESET, runs=Path("r"), experiments=Path("e"))
    found = {"hypothesis": "H00", "level": level, "text": "It stops.", "evidence": []}
    verdict = ladder_verdict(found, setup)
    assert (verdict.ruling, verdict.mechanism.control) == (ruling, presence)


def test_what_is_recorded_holds_every_run(asked):
    found, _, _ = asked(PRESET, ["H09", "H06"], broken_mask)
    experiment, observation = found
    assert {run["role"] for run in experiment.result["runs"]} == {"control", "treated", "negative"}
    assert [run["seed"] for run in observation.result["runs"]] == [0, 1, 2]
    assert observation.plan["question"] == "Is it there at all?"


def checkup_that(tmp_path, monkeypatch, script):
    monkeypatch.setattr(looks, "FLATLINE", (sys.executable, "-c", script))
    setup = Setup(config=HEALTHY, runs=tmp_path, experiments=tmp_path)
    return looks.checkup_of(setup.control, tmp_path, lambda text: None)


def test_a_checkup_that_crashes_says_so_with_what_to_type(tmp_path, monkeypatch):
    with pytest.raises(ConfigError) as error:
        checkup_that(tmp_path, monkeypatch, "raise ZeroDivisionError('the sampler broke')")
    text = str(error.value)
    assert "exit code 1" in text
    assert "the sampler broke" in text
    assert "`flatline checkup musique --config" in text
    assert "--json" not in text
    assert not list(tmp_path.glob("*-checkup.json"))  # the next try looks again


def test_a_checkup_with_findings_is_no_failure(tmp_path, monkeypatch):
    script = (
        "import json, sys; assert sys.argv[-3:] == ['--fail-on', 'never', '--json'];"
        "print(json.dumps({'findings': [{'hypothesis': 'H09', 'level': 'fault', 'text': 'seen'}]}))"
    )
    assert checkup_that(tmp_path, monkeypatch, script)["H09"].proven
