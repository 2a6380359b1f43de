"""With `--json` stdout holds JSON, whatever the libraries print that a command uses."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from flatline.cli import options
from flatline.cli.output import print_json

LIBRARY = """
import atexit, ctypes, logging, os, sys

early = logging.StreamHandler(sys.stdout)

def loud():
    print("LOUD print")
    log = logging.getLogger("loud")
    log.setLevel("INFO")
    for handler in (early, logging.StreamHandler(sys.stdout)):
        log.addHandler(handler)
    log.info("LOUD log")
    os.write(1, b"LOUD descriptor\\n")
    os.system("echo LOUD child")
    ctypes.CDLL(None).printf(b"LOUD C\\n")  # buffered until the process ends
    atexit.register(print, "LOUD end")
    sys.__stdout__.write("LOUD own stream\\n")  # and not flushed
"""

COMMAND = """
import typer
from flatline.cli import options
from flatline.cli.output import print_json

app = typer.Typer()

@app.command()
def work(json: options.Json = False):
    loud()
    if json:
        print_json({"done": True})
    else:
        print("done")

app()
"""

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def work(tmp_path):
    file = tmp_path / "work.py"
    file.write_text(LIBRARY + COMMAND)

    def run(*words, **streams):
        done = subprocess.run(
            [sys.executable, str(file), *words],
            text=True,
            timeout=60,
            env=BUFFERED,
            **(streams or {"capture_output": True}),
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_what_libraries_print_goes_to_stderr_and_json_alone_to_stdout(work):
    done = work("--json")
    assert json.loads(done.stdout) == {"done": True}
    told = ("print", "own stream", "log", "descriptor", "child", "C", "end")
    assert [one for one in told if f"LOUD {one}" not in done.stderr] == []


def test_without_json_libraries_print_where_they_always_did(work):
    done = work()
    assert "LOUD" not in done.stderr.replace("LOUD log", "")  # one of the loggers is on stderr
    assert "LOUD C" in done.stdout
    assert "done" in done.stdout


def test_a_stream_in_the_place_of_stdout_is_treated_alike_and_put_back():
    app = typer.Typer()

    @app.command()
    def work(json: options.Json = False):
        print("LOUD")
        print_json({"asked": json})

    quiet, plain = (CliRunner().invoke(app, words) for words in (["--json"], []))
    assert json.loads(quiet.stdout) == {"asked": True}
    assert "LOUD" in quiet.stderr
    assert plain.stdout.startswith("LOUD")
