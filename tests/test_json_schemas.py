"""What `--json` prints is what the schemas say, key by key."""

import importlib.util
import json
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

import flatline.cli.evaluate as command
from flatline.cli import app
from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Evidence, Hypothesis, Level
from flatline.stats import UNKNOWN, Estimate
from flatline.verdict.records import Confidence, Mechanism, Presence, Ruling, Verdict
from tests.test_cli import EVALUATE, FakeEngine
from tests.traces import healthy_trace

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "json_schemas.py"
FOLDER = ROOT / "docs" / "schemas"


def load_script():
    spec = importlib.util.spec_from_file_location("json_schemas", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


made = load_script()


def assert_fits(name, output):
    """Against the published file, and against the model with no other key allowed."""
    output = json.loads(json.dumps(output, allow_nan=False))
    jsonschema.validate(output, json.loads((FOLDER / f"{name}.json").read_text()))
    made.SHAPES[name].model_validate(output, extra="forbid", strict=True)


class Fires(Hypothesis):
    id, name, fix, meaning = "H90", "fires", "type this", "it matters"

    def sign(self, trace):
        example = Evidence(text="seen", step=1, rollout=2)
        nowhere = Estimate(0.5, float("-inf"), float("inf"), 3)
        return self.found(Level.FAULT, "broken", measured=nowhere, evidence=[example])


@pytest.mark.parametrize("name", made.SHAPES)
def test_the_published_schema_is_the_one_of_the_code(name):
    assert (FOLDER / f"{name}.json").read_text() == made.schema_text(name), "type `make schemas`"


def test_every_published_schema_is_still_made():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(made.SHAPES)


def test_a_diagnosis_fits_its_schema():
    assert_fits("diagnosis-1", diagnose(healthy_trace(steps=4)).to_json())
    assert_fits("diagnosis-1", diagnose(healthy_trace(steps=1), hypotheses=(Fires(),)).to_json())


@pytest.mark.parametrize("further", [[], ["--compare", "lab"]])
def test_an_evaluation_fits_its_schema(monkeypatch, further):
    monkeypatch.setattr(command, "_engine", lambda *_: FakeEngine())
    done = CliRunner().invoke(app, [*EVALUATE, "--json", *further])
    assert_fits("evaluation-1", json.loads(done.stdout))


@pytest.mark.parametrize("effect", [Estimate(0.1, 0.05, 0.15, 3), UNKNOWN])
def test_a_verdict_fits_its_schema(effect):
    mechanism = Mechanism(control=Presence.PRESENT, treated=None, direct=True, text="seen")
    verdict = Verdict(
        hypothesis="H09",
        ruling=Ruling.VALIDATED,
        confidence=Confidence.HIGH,
        effect=effect,
        smallest_effect=0.05,
        reason="why",
        would_change="what",
        alpha=0.05,
        settled=True,
        mechanism=mechanism,
    )
    assert_fits("verdict-1", verdict.to_json())
    assert_fits("verdict-1", {**verdict.to_json(), "change": "--- a/train.py"})


def test_a_key_that_the_schema_does_not_name_is_noticed():
    output = diagnose(healthy_trace(steps=1), hypotheses=()).to_json()
    with pytest.raises(ValueError, match="extra"):
        assert_fits("diagnosis-1", {**output, "undocumented": 1})
