"""What CI reads: exit codes, JUnit, SARIF and annotations, and none of it obeys a model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sarif_pydantic import Sarif
from typer.testing import CliRunner

import flatline.diagnosis.report as diagnosis
from flatline.cli import app
from flatline.diagnosis.renderers.ci.fail_on import FailOn
from flatline.diagnosis.renderers.ci.github import annotations
from flatline.diagnosis.renderers.ci.junit import to_junit
from flatline.diagnosis.renderers.ci.sarif import to_sarif
from flatline.diagnosis.report import Report
from flatline.hypotheses.base import Evidence, Finding, Level

HOSTILE = "\x1b[31m\n::add-mask::x\r</failure><script>alert(1)</script>%0A{0}\ud800\ufffe, a:b"
LOG = [{"step": step, "reward": 0.5, "loss": 0.1, "kl": 0.01} for step in range(1, 9)]


def found(code, level, text="seen", **more):
    return Finding(hypothesis=code, name=f"name-{code}", level=level, text=text, **more)


def report_of(*findings):
    return Report(subject="runs/x", findings=findings, trend=None)


FAULT = found("H09", Level.FAULT, fix="type this", evidence=(Evidence(text="ids"),))
SUSPECT = found("H44", Level.SUSPECT)
NOTE, OK, UNKNOWN = (
    found(*one) for one in (("H01", Level.NOTE), ("H02", Level.OK), ("H03", Level.UNKNOWN))
)
ALL = report_of(FAULT, SUSPECT, NOTE, OK, UNKNOWN)
HOSTILE_REPORT = report_of(
    found("H09", Level.FAULT, HOSTILE, fix=HOSTILE, evidence=(Evidence(text=HOSTILE),))
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`flatline diagnose` of a log, where the diagnosis is the report that is given."""
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": LOG}))

    def run(*arguments, report=ALL):
        monkeypatch.setattr(diagnosis, "diagnose", lambda run, *, correct: report)
        runner = CliRunner(env={"COLUMNS": "120"})
        return runner.invoke(app, ["diagnose", str(log), *arguments], prog_name="flatline")

    return run


# -- exit codes


@pytest.mark.parametrize(
    ("findings", "fault", "suspect", "never"),
    [((FAULT,), 1, 1, 0), ((SUSPECT,), 0, 1, 0), ((NOTE, OK, UNKNOWN), 0, 0, 0)],
)
def test_the_exit_code_follows_fail_on(run, findings, fault, suspect, never):
    report = report_of(*findings)
    wanted = {"fault": fault, "suspect": suspect, "never": never}
    got = {name: run("--fail-on", name, report=report).exit_code for name in wanted}
    assert got == wanted
    assert run(report=report).exit_code == suspect, "what it was before there was a choice"


def test_bad_input_fails_whatever_fail_on_says(tmp_path):
    missing = str(tmp_path / "no-such-run")
    done = CliRunner().invoke(app, ["diagnose", missing, "--fail-on", "never"])
    assert done.exit_code == 2


def test_a_file_that_cannot_be_written_is_said_without_a_traceback(run, tmp_path):
    done = run("--junit", str(tmp_path / "no" / "folder" / "x.xml"))
    assert done.exit_code == 2
    assert "--junit" in done.stderr and "Traceback" not in done.stderr


# -- JUnit


def test_junit_has_a_case_per_hypothesis_and_fails_what_fail_on_says(run, tmp_path):
    run("--junit", str(tmp_path / "x.xml"), "--fail-on", "fault")
    suite = ElementTree.parse(tmp_path / "x.xml").getroot().find("testsuite")
    assert suite.attrib["tests"] == "5" and suite.attrib["failures"] == "1"
    assert suite.attrib["skipped"] == "1"
    cases = {case.attrib["name"]: case for case in suite.findall("testcase")}
    failure = cases["H09 name-H09"].find("failure")
    assert failure.attrib == {"type": "fault", "message": "H09 name-H09."}
    assert "Example: ids" in failure.text and "Do: type this" in failure.text
    assert cases["H44 name-H44"].find("failure") is None
    assert "suspect: seen" in cases["H44 name-H44"].find("system-out").text
    assert cases["H03 name-H03"].find("skipped") is not None


def test_junit_of_hostile_text_is_well_formed_and_holds_no_markup_of_its_own():
    root = ElementTree.fromstring(to_junit(HOSTILE_REPORT, fail_on=FailOn.FAULT))
    assert root.find(".//script") is None
    assert "<script>alert(1)</script>" in root.find(".//failure").text
    assert "\x1b" not in ElementTree.tostring(root, encoding="unicode")


# -- SARIF


def test_sarif_lists_alarms_and_notes_with_the_rule_and_the_place_of_each(tmp_path):
    log = json.loads(to_sarif(ALL, about=Path("runs/my run/run.json")))
    (one,) = log["runs"]
    assert log["version"] == "2.1.0" and one["tool"]["driver"]["name"] == "flatline"
    assert [r["level"] for r in one["results"]] == ["error", "warning", "note"]
    rules = one["tool"]["driver"]["rules"]
    for result in one["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place["uri"] == "runs/my%20run/run.json"
    assert "## Fix" in rules[0]["help"]["text"], "the manual page is the help"


@pytest.mark.parametrize("report", [ALL, HOSTILE_REPORT, report_of(OK)])
def test_sarif_has_only_what_the_format_knows(report):
    for about in (None, Path("run.toml")):
        Sarif.model_validate_json(to_sarif(report, about=about), extra="forbid")


def test_a_finding_keeps_its_fingerprint_when_its_numbers_change():
    texts = ("3 of 4 tokens", "7 of 9 tokens")
    logs = [json.loads(to_sarif(report_of(found("H09", Level.FAULT, text)))) for text in texts]
    one, other = (log["runs"][0]["results"][0]["partialFingerprints"] for log in logs)
    assert one == other


# -- GitHub


def test_an_annotation_is_one_line_that_no_text_can_end():
    (line,) = annotations(HOSTILE_REPORT, about=Path("runs/a,b:c"))
    assert line.startswith("::error file=runs/a%2Cb%3Ac,title=H09 name-H09.::")
    assert "\n" not in line and "\r" not in line
    assert "%0A::add-mask" in line and "%250A" in line, "line ends and percent signs are escaped"


def test_faults_are_errors_suspects_warnings_and_the_rest_a_notice():
    kinds = [line.split(" ")[0] for line in annotations(ALL)]
    assert kinds == ["::error", "::warning"]
    (line,) = annotations(report_of(OK))
    assert line.startswith("::notice title=flatline::There is not enough here")


COMMANDS = ("::add-mask::x", "##[add-mask]x", "##vso[task.setvariable]x", "##teamcity[x]")
OBEYED = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)


ANNOTATION = re.compile(r"::(error|warning|notice) (file=[^:]*,)?title=")


ONE_AFTER_THE_OTHER = """
import json, sys
from flatline.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["flatline", *words]
    try:
        main()
    except SystemExit:
        pass
"""


@pytest.mark.parametrize("width", ["20", "100"])
def test_no_line_that_a_log_or_an_error_quotes_is_obeyed_by_the_runner(tmp_path, width):
    every = "\n".join(f"x {one}\n  {one}" for one in COMMANDS)
    named = [{"step": n, "reward": 0.5, every: n, **dict.fromkeys(COMMANDS, n)} for n in range(6)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, [*named, every, [every]])))
    annotated = [
        ["diagnose", "log.jsonl", "--github"],
        ["diagnose", "log.jsonl", "--github", "--json"],
    ]
    others = [
        ["show", "log.jsonl"],
        ["query", "log.jsonl", f"SELECT '{every}' AS \"{every}\""],
        ["query", "log.jsonl", every],
        ["diagnose", f"no\n{every}"],
    ]
    for commands in ([annotated[0]], [annotated[1]], others):
        done = subprocess.run(
            [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": width},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        own = [line for line in lines if ANNOTATION.match(line)]
        assert lines and bool(own) == (commands is not others)
        assert not [line for line in lines if OBEYED.search(line) and line not in own]
        if commands == [annotated[1]]:
            json.loads(done.stdout)


def test_with_json_on_stdout_annotations_go_to_stderr(run):
    done = run("--github", "--json")
    assert json.loads(done.stdout)["findings"]
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == ["::error", "::warning"]


# -- checkup takes the same options


def test_a_checkup_hands_over_in_the_same_way(monkeypatch, tmp_path):
    import flatline.cli.checkup as command

    monkeypatch.setattr(command, "look", lambda config, **_: ALL)
    sarif = tmp_path / "x.sarif"
    config = tmp_path / "run.toml"
    config.write_text('task = "musique"\n')
    arguments = ["checkup", "musique", "--config", str(config), "--fail-on", "never", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--sarif", str(sarif)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["version"] == 1
    (place,) = json.loads(sarif.read_text())["runs"][0]["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"].endswith("run.toml")


# -- shell completion


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("flatline diagnose --fail-on ", "suspect")],
)
def test_the_shell_is_told_how_a_command_goes_on(typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from flatline.cli import main; main()"],
        env={"_FLATLINE_COMPLETE": "complete_bash", **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert offered in done.stdout.split()


# -- a baseline


@pytest.fixture
def accepted(run, tmp_path):
    """A baseline that knows of the fault and of the suspect."""
    file = tmp_path / "baseline.json"
    assert run("--write-baseline", str(file)).exit_code == 0, "all that is written is accepted"
    return file


def test_what_a_baseline_knows_is_shown_and_does_not_fail(run, accepted):
    done = run("--baseline", str(accepted), "--github")
    assert done.exit_code == 0
    assert "baseline.json knows of H09 name-H09, H44 name-H44; only what is new counts" in " ".join(
        done.stdout.split()
    )
    assert done.stdout.count("name-H09") > 1 and "::error" not in done.stdout
    told = json.loads(run("--baseline", str(accepted), "--json").stdout)
    assert told["known"] == ["H09", "H44"] and told["outcome"] == "alarm"


def test_what_a_baseline_does_not_know_fails(run, accepted):
    new = report_of(FAULT, SUSPECT, found("H26", Level.SUSPECT))
    done = run("--baseline", str(accepted), "--github", report=new)
    assert done.exit_code == 1
    annotated = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert len(annotated) == 1 and "H26" in annotated[0]


def test_a_suspect_that_has_become_a_fault_is_new_and_the_reverse_is_not(run, accepted):
    surer = report_of(found("H44", Level.FAULT))
    assert run("--baseline", str(accepted), report=surer).exit_code == 1
    assert (
        run("--baseline", str(accepted), report=report_of(found("H09", Level.SUSPECT))).exit_code
        == 0
    )


def test_junit_and_sarif_say_what_is_known(run, accepted, tmp_path):
    run("--baseline", str(accepted), "--junit", str(tmp_path / "j"), "--sarif", str(tmp_path / "s"))
    assert ElementTree.parse(tmp_path / "j").getroot().attrib["failures"] == "0"
    results = json.loads((tmp_path / "s").read_text())["runs"][0]["results"]
    states = {one["ruleId"]: one.get("baselineState") for one in results}
    assert states == {"H09": "unchanged", "H44": "unchanged", "H01": None}


@pytest.mark.parametrize(
    "text, told",
    [
        (None, "cannot be read: No such file"),
        ("[1, 2", "is not a baseline"),
        ("[]", "does not say"),
        ('{"version": 2}', "does not say"),
        ('{"version": 1, "known": [3]}', "`known` has 3"),
        ('{"version": 1, "known": [{"hypothesis": "H01", "level": "ok"}]}', "`known` has"),
    ],
)
def test_a_baseline_that_is_none_says_so_and_what_to_type(run, tmp_path, text, told):
    file = tmp_path / "b.json"
    if text is not None:
        file.write_text(text)
    done = run("--baseline", str(file))
    assert done.exit_code == 2 and told in done.stderr and "--write-baseline" in done.stderr
