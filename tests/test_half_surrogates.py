"""Half of a surrogate pair, which JSON can say and UTF-8 cannot, costs no log and no output."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.trace import Recorder, Trace
from flatline.trace.folder import write_run
from flatline.trace.importers import open_log

HALF = r"\ud800"
"""As JSON writes it, and as it is shown."""
METRICS = [
    f'{{"step":{at},"reward":{0.1 * (at % 3)},"loss":0.1,"kl":0.0{at},"my {HALF}score":{at}.5,'
    f'"note":"{HALF}"}}'
    for at in range(1, 9)
]
ROLLOUTS = [
    f'{{"input":"a{HALF}","output":"b{HALF} {at}","gts":"{HALF}","score":{at % 2}.0,'
    f'"step":{at},"{HALF}":1}}'
    for at in range(1, 9)
]
LOGS = {
    "metrics.jsonl": "\n".join(METRICS),
    "rollouts.jsonl": "\n".join(ROLLOUTS),
    "log.json": f'{{"{HALF}":"{HALF}","rows":[{",".join(METRICS)}]}}',
    "trainer_state.json": f'{{"log_history":[{",".join(METRICS)}],"max_steps":"{HALF}"}}',
}


@pytest.fixture(params=LOGS)
def log(request, tmp_path):
    path = tmp_path / request.param
    path.write_text(LOGS[request.param], encoding="utf-8")
    return path


def flatline(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "flatline", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, "COLUMNS": "160", **environment},
        timeout=120,
    )


def test_a_metric_whose_name_utf8_cannot_write_is_read_under_a_name_that_shows_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(LOGS[path.name])
    trace = open_log(path)
    assert trace.metric(rf"my {HALF}score").tolist() == [at + 0.5 for at in range(1, 9)]
    assert trace.run["unrecognised"] == [rf"my {HALF}score"]
    assert trace.steps["kl"].tolist() == [0.01 * at for at in range(1, 9)]


def test_every_output_of_such_a_log_can_be_written(log, tmp_path):
    page, table = tmp_path / "page.html", ["diagnose", log, "--json"]
    for arguments in (["diagnose", log], table, ["report", log, "-o", page], ["show", log]):
        done = CliRunner().invoke(app, [str(one) for one in arguments])
        assert done.exit_code == 0, (arguments, done.output)
        done.stdout_bytes.decode("utf-8")
        if arguments is table:
            json.loads(done.stdout)
    page.read_bytes().decode("utf-8")


def test_a_run_whose_facts_utf8_cannot_write_is_read(tmp_path):
    folder = tmp_path / "run"
    with Recorder(folder) as recorder:
        recorder.log_step(step=1, reward=0.5)
    run = dict(Trace.open(folder).run)
    write_run(folder, {**run, "notes": ["\ud800 was noted"], "settings": {"\ud800": "\ud801"}})
    trace = Trace.open(folder)
    assert trace.settings == {HALF: r"\ud801"}
    assert trace.warnings == []
    done = flatline("diagnose", folder)
    assert done.returncode == 0, done.stderr.decode()
    assert rf"{HALF} was noted" in done.stdout.decode("utf-8")


def test_a_terminal_that_lacks_a_sign_is_shown_another(tmp_path):
    done = flatline("explain", "H03", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
