"""`flatline run` and `investigate --script`: somebody's script, unchanged, with flatline in it."""

import json
import shlex
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from flatline.cli import app
from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.heldout import read_scores
from flatline.hypotheses import find
from flatline.investigation import Setup
from flatline.investigation import script as investigation
from flatline.investigation.mending import change_to_make
from flatline.investigation.script import Script, investigate_script
from flatline.script.run import ScriptRun, run_script
from flatline.trace import Trace

sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "scripts"))

import prepare
import prove

SCRIPTS = Path(prepare.__file__).parent
torch.set_num_threads(1)
SUMS, TOOL_SUMS = SCRIPTS / "sums.py", SCRIPTS / "tool_sums.py"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A model that has learned next to nothing, and its data."""
    folder = tmp_path_factory.mktemp("given")
    before, prepare.FITTED = prepare.FITTED, 3
    prepare.prepare(folder)
    prepare.FITTED = before
    return str(folder / "model"), str(folder / "sums.jsonl")


def run(given, folder, *more, **asked):
    run_script(
        ScriptRun(script=SUMS, arguments=(*given, "--steps", "2", *more), output=folder, **asked)
    )


@pytest.fixture(scope="module")
def recorded(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    run(given, folder / "out", record=folder / "run", seed=5, evaluate=True)
    return folder / "run"


def test_a_script_that_knows_nothing_of_flatline_is_recorded_with_the_seed_it_is_given(recorded):
    for script in (SUMS, TOOL_SUMS):
        assert "flatline" not in script.read_text().replace("knows nothing of flatline", "")
    trace = Trace.open(recorded)
    assert trace.run["seed"] == 5
    assert list(trace.steps["step"]) == [1, 2]
    first, last = read_scores(recorded)
    assert (first.step, last.step) == (0, 2)
    assert first.problems == last.problems
    held_out = {problem.partition(": ")[2] for problem in first.problems}
    assert len(held_out) > 10


def test_the_same_seed_trains_the_same_with_and_without_a_recording(given, tmp_path, recorded):
    drawn = [Trace.open(recorded).steps["grad_norm"].tolist()]
    for name, evaluate in (("again", True), ("not evaluated", False)):
        run(given, tmp_path / "out", record=tmp_path / name, seed=5, evaluate=evaluate)
        drawn.append(Trace.open(tmp_path / name).steps["grad_norm"].tolist())
    first, again, other = drawn
    assert first == again
    # Rows that are held out are not trained on, so what is trained is another matter.
    assert first != other


def test_a_pilot_compares_the_gradient_with_the_remedy_to_the_one_without(given, tmp_path):
    found = []
    for seed, fault in ((0, ()), (1, ()), (0, ("--fault", "mask"))):
        path = tmp_path / "pilot.json"
        run(given, tmp_path / "out", *fault, remedies=("H09",), seed=seed, pilot=path)
        found.append(json.loads(path.read_text()))
    healthy, other_seed, faulty = found
    assert healthy["drawn"] != other_seed["drawn"]
    assert healthy["steps"] == 2 and healthy["seconds_per_step"] > 0
    assert {one["hypothesis"] for one in healthy["findings"]} >= {"H09", "H54"}
    assert all(one["cosine"] > 1 - 1e-9 for one in healthy["gradient"])
    assert all(one["cosine"] < 0.9 for one in faulty["gradient"])


def test_a_script_that_trains_nothing_is_told(tmp_path):
    script = tmp_path / "idle.py"
    script.write_text("print('done')")
    with pytest.raises(ConfigError, match="without training a GRPO trainer"):
        run_script(ScriptRun(script=script, record=tmp_path / "run"))


def test_a_remedy_that_does_not_exist_is_refused_before_the_script_runs(tmp_path):
    script = tmp_path / "boom.py"
    script.write_text("raise SystemExit('it ran')")
    with pytest.raises(ConfigError, match="no remedy"):
        run_script(ScriptRun(script=script, remedies=("H37",)))


# -- investigate --script


class Said:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def progress(self, progress):
        pass


class Nobody:
    """No run may be made."""

    jobs = 2

    def execute(self, jobs, on_done, on_tick):
        raise AssertionError("a run was made")


def pilot(**changes):
    found = {
        "steps": 60,
        "seconds_per_step": 0.5,
        "evaluation_seconds": 1.0,
        "startup_seconds": 10.0,
        "held_out_rows": 32,
        "drawn": "a",
        "processes": 1,
        "findings": [],
        "gradient": [{"cosine": 0.2, "length": 1.5}],
        "acted": {},
    }
    return found | changes


def concluded(monkeypatch, tmp_path, code, control, treated, budget=None):
    """What is said of one hypothesis where the pilots found this."""
    made = {"none": control, code: treated}
    monkeypatch.setattr(
        investigation, "_piloted", lambda arm, seed, path, share: made[arm.values["remedy"]]
    )
    setup = Setup(config=RunConfig(), runs=tmp_path / "runs", experiments=tmp_path / "experiments")
    said = Said()
    script = Script(path=SUMS, arguments=("model", "{data}"))
    found = list(investigate_script(setup, script, [find(code)], Nobody(), said, budget=budget))
    return found[0], said.lines


def finding(code, level):
    return {"hypothesis": code, "level": level, "text": "Seen.", "where": []}


SAME = pilot(drawn="b", gradient=[{"cosine": 1.0, "length": 1.0}] * 2)
RULED_OUT, THERE, NO_REMEDY = (
    [finding(*one)] for one in (("H09", "ok"), ("H52", "fault"), ("H37", "suspect"))
)


@pytest.mark.parametrize(
    ("code", "control", "treated", "ruling", "why"),
    [
        ("H09", pilot(findings=RULED_OUT), pilot(drawn="b"), "invalidated", ""),
        ("H53", pilot(), SAME, "invalidated", "the gradient without it"),
        (
            "H52",
            pilot(findings=THERE),
            pilot(drawn="b", findings=THERE),
            "inconclusive",
            "does not take H52 away",
        ),
        ("H11", pilot(), {"refused": "With tools."}, "inconclusive", "With tools."),
        ("H37", pilot(findings=NO_REMEDY), pilot(), "inconclusive", "reward_weights"),
    ],
)
def test_what_pilots_settle_is_not_trained(
    monkeypatch, tmp_path, code, control, treated, ruling, why
):
    found, _ = concluded(monkeypatch, tmp_path, code, control, treated)
    assert found.verdict.ruling == ruling
    assert why in found.verdict.reason


def test_a_remedy_of_the_optimizer_is_not_judged_by_the_gradient(monkeypatch, tmp_path):
    with pytest.raises(AssertionError, match="a run was made"):
        concluded(monkeypatch, tmp_path, "H58", pilot(), SAME)


@pytest.mark.parametrize(("drawn", "told"), [("a", "ignores the seed"), ("", "takes no step")])
def test_a_script_that_cannot_be_compared_is_told_before_anything_is_trained(
    monkeypatch, tmp_path, drawn, told
):
    with pytest.raises(ConfigError, match=told):
        concluded(monkeypatch, tmp_path, "H53", pilot(drawn=drawn), pilot(drawn=drawn))


def test_the_cost_is_said_first_and_a_budget_ends_it_where_the_evidence_stands(
    monkeypatch, tmp_path
):
    found, said = concluded(monkeypatch, tmp_path, "H53", pilot(), pilot(drawn="b"), budget=100.0)
    cost = next(line for line in said if line.startswith("A step takes"))
    assert "0.5 s and a run of 60 steps 42 s" in cost
    assert "3 to 6 matched seeds" in cost and "126 s" not in cost and "4 min" in cost
    assert "32 held-out rows" in cost
    assert any("The budget ends here: 3 matched seeds" in line for line in said)
    assert found.verdict.ruling == "inconclusive"
    assert (tmp_path / "experiments/h53-advantages-depart/plan.json").exists()


def test_an_arm_that_dies_is_told_with_the_end_of_its_output(tmp_path):
    script = tmp_path / "dies.py"
    script.write_text("raise RuntimeError('needs 8 GPUs')")
    setup = Setup(config=RunConfig(), runs=tmp_path / "runs", experiments=tmp_path / "experiments")
    with pytest.raises(ConfigError, match="needs 8 GPUs") as told:
        list(investigate_script(setup, Script(path=script), [find("H09")], Nobody(), Said()))
    assert "--launch" in str(told.value)


def test_a_changed_script_is_another_experiment(tmp_path):
    script = tmp_path / "train.py"
    digests = set()
    for text in ("a = 1", "a = 2"):
        script.write_text(text)
        arm = Script(path=script).arm("control", "none", "heldout_reward", "none")
        digests.add(arm.digest)
    assert len(digests) == 2


# -- whose flag it is


def asked_by(monkeypatch, *words):
    """What a command line comes to, and what was said of it."""
    asked = []
    monkeypatch.setattr("flatline.script.run.run_script", asked.append)
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.output
    return asked[0], done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--record", "R", "--steps", "3", "train.py", "--lr", "1", "data"),
        ("train.py", "--record", "R", "--steps", "3", "--lr", "1", "data"),
        ("train.py", "--lr", "1", "--record=R", "data", "--steps=3"),
        ("--steps", "3", "train.py", "--lr", "1", "--record", "R", "data"),
        ("train.py", "--record", "R", "--steps", "3", "--", "--lr", "1", "data"),
    ],
)
def test_options_of_flatline_count_on_either_side_of_the_script(monkeypatch, words):
    asked, said = asked_by(monkeypatch, *words)
    assert (asked.record, asked.steps) == (Path("R"), 3)
    assert (asked.script, asked.arguments) == (Path("train.py"), ("--lr", "1", "data"))
    behind = words[words.index("train.py") :]
    for flag in ("--record", "--steps"):
        assert (flag in said) == any(word.startswith(flag) for word in behind), said


@pytest.mark.parametrize(
    "words",
    [
        ("train.py", "--", "--record", "R", "--steps", "3"),
        ("--", "train.py", "--record", "R", "--steps", "3"),
    ],
)
def test_behind_two_dashes_every_flag_is_the_scripts_and_nothing_is_said(monkeypatch, words):
    asked, said = asked_by(monkeypatch, *words)
    assert (asked.record, asked.steps, said) == (None, None, "")
    assert asked.arguments == ("--record", "R", "--steps", "3")


def test_an_experiment_gives_a_script_its_own_flags_whatever_flatline_calls_its_own(
    monkeypatch, tmp_path
):
    (tmp_path / "train.py").touch()
    script = Script(path=tmp_path / "train.py", arguments=("--steps", "9", "--seed", "7"))
    for command in (
        script.arm("treated", "H09", "heldout_reward", "none").command,
        change_to_make("H53", [], script.path, script.arguments).rpartition("`flatline run")[2],
    ):
        words = shlex.split(command.strip("`"))
        words = words[words.index("run") + 1 :] if "run" in words else words
        words = [word.format(remedy="H09", seed=1, run_dir="R") for word in words]
        asked, said = asked_by(monkeypatch, *words)
        assert (asked.arguments, asked.steps, said) == (script.arguments, None, "")


# -- the change to make


def test_an_argument_is_changed_where_the_script_writes_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("args = GRPOConfig(\n    beta=0.04,\n    seed=1,\n)\n")
    change = change_to_make("H03", [], script, ["--big"])
    assert "-    beta=0.04," in change and "+    beta=0.0," in change
    assert f"flatline run --remedy H03 {script} -- --big" in change


def test_a_method_that_stands_over_one_of_trl_is_taken_away():
    text = SUMS.read_text().splitlines()
    line = next(at for at, one in enumerate(text, 1) if "mask[:, :-logits_to_keep] = 0" in one)
    where = [{"file": "sums.py", "line": line, "source": text[line - 1].strip()}]
    change = change_to_make("H09", where, SUMS, [])
    assert "-        mask[:, :-logits_to_keep] = 0" in change
    assert "-    def _get_per_token_logps_and_entropies" in change
    assert "class OldOfTheLastBatch" not in change.replace("  class", "class").split("@@")[1]


def test_every_kept_case_names_its_cause_and_no_other():
    for found in json.loads(prove.KEPT.read_text(encoding="utf-8")):
        cause, *others = [one["verdict"] for one in found["verdicts"]]
        healthy = found["case"].endswith(prove.HEALTHY)
        assert cause == ("invalidated" if healthy else "validated"), found["case"]
        assert set(others) <= {"invalidated", "partial"}, found["case"]
