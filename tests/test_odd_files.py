"""Folders that somebody sent: what is in the place of a file is refused and told."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flatline.diagnosis.report import diagnose
from flatline.errors import ConfigError, FlatlineError, TraceError
from flatline.files import RefusedFile, bytes_in, json_in, open_plain
from flatline.heldout import read_scores
from flatline.journal import Journal, board
from flatline.loopback import Bind
from flatline.report.journal_page import journal_page
from flatline.report.run_state import state_of
from flatline.report.web.app import application
from flatline.trace import Trace
from flatline.trace.importers import open_log
from tests.journals import journal_at
from tests.odd_files import ODD, SECRET, put
from tests.web_runs import record

pytestmark = pytest.mark.timeout(60)  # what waits for a pipe waits for ever
LINKS_AND_PIPES = [kind for kind in ODD if kind != "8 TiB of zeros"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "closed": record(folder / "closed", steps=2),
        "crashed": record(folder / "crashed", steps=2, clean=False),
    }


@pytest.fixture
def copy(made, tmp_path):
    def copied(kind: str) -> Path:
        return Path(shutil.copytree(made[kind], tmp_path / "runs" / "x"))

    return copied


def pages(folder: Path) -> TestClient:
    bind = Bind(host="127.0.0.1", port=8000, token=None)
    return TestClient(application(folder, bind), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize("kind", ODD)
def test_only_regular_files_of_reasonable_size_are_read_whole(tmp_path, kind):
    folder = tmp_path / "folder"
    folder.mkdir()
    put(folder / "run.json", kind)
    with pytest.raises((OSError, ValueError), match=r"run\.json is a|MiB") as told:
        bytes_in(folder / "run.json")
    assert SECRET not in str(told.value)


def test_the_folder_itself_may_be_a_link_and_so_may_what_stays_inside_it(tmp_path, made):
    latest = tmp_path / "latest"
    latest.symlink_to(made["closed"])
    inner = made["closed"] / "again.json"
    inner.symlink_to("run.json")
    try:
        assert json_in(latest / "again.json") == json_in(made["closed"] / "run.json")
    finally:
        inner.unlink()
    assert not Trace.open(latest).warnings
    assert not open_log(latest).warnings


def test_a_folder_that_becomes_a_link_between_the_look_and_the_opening_is_not_followed(
    tmp_path, monkeypatch
):
    inner, outside = tmp_path / "folder" / "inner", tmp_path / "outside"
    for one in (inner, outside):
        one.mkdir(parents=True)
        (one / "file").write_text(one.name)
    resolved = os.path.realpath

    def swapped(path, **options):
        found = resolved(path, **options)
        if Path(path).name == "file" and not inner.is_symlink():
            shutil.rmtree(inner)
            inner.symlink_to(outside)
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(OSError):
        open_plain(inner / "file", within=tmp_path / "folder")


@pytest.mark.parametrize("kind", LINKS_AND_PIPES)
@pytest.mark.parametrize("ending", ["run.json", "rollouts.r0.0.parquet", "steps.r0.0.parquet"])
def test_an_odd_file_of_a_closed_run_is_told_and_the_rest_is_read(copy, ending, kind):
    run = copy("closed")
    put(run / ending, kind)
    trace = open_log(run)
    diagnose(trace, name="x")
    assert any(ending in text for text in trace.warnings)
    assert SECRET not in "".join(trace.caveats)


@pytest.mark.parametrize("kind", ["a pipe", "a link that leads out", "a link to a device"])
@pytest.mark.parametrize("ending", ["steps.r0.0.crc", "steps.r0.0.arrow", "tokens.r0.0.arrow"])
def test_an_odd_file_of_a_crashed_run_is_told_and_the_rest_is_read(copy, ending, kind):
    run = copy("crashed")
    put(run / ending, kind)
    trace = open_log(run)
    assert any(ending in text for text in trace.warnings)


@pytest.mark.parametrize("kind", ODD)
def test_held_out_scores_that_are_no_file_are_told(copy, kind):
    run = copy("closed")
    put(run / "heldout.jsonl", kind)
    with pytest.raises(TraceError, match=r"heldout\.jsonl"):
        read_scores(run)


@pytest.mark.parametrize("kind", ODD)
def test_every_page_of_a_folder_with_odd_files_is_answered(copy, tmp_path, kind):
    run = copy("closed")
    record(tmp_path / "runs" / "sound", steps=1)
    for name in ("run.json", "steps.r0.0.parquet", "heldout.jsonl", "diagnosis.json", "plan.json"):
        put(run / name, kind)
    client = pages(tmp_path / "runs")
    for address in (
        "/",
        "/run/x",
        "/rollouts/x",
        "/api/run/x/steps",
        "/experiment/x",
        "/run/sound",
    ):
        answer = client.get(address)
        assert answer.status_code < 500, (address, answer.text)
        assert SECRET not in answer.text
    assert client.get("/run/sound").status_code == 200


def test_a_run_that_is_slow_to_open_does_not_keep_others_waiting(tmp_path, monkeypatch):
    """A disk that does not answer must stop the reader of that run and nobody else."""
    from threading import Event, Thread

    from flatline.report.web import store as module

    slow, quick = (record(tmp_path / name, steps=1) for name in ("slow", "quick"))
    begun, go_on = Event(), Event()
    real = Trace.open

    def opened(path):
        if path == slow:
            begun.set()
            go_on.wait(30)
        return real(path)

    monkeypatch.setattr(module.Trace, "open", opened)
    store = module.Store()

    def hold(path):
        with store.hold(path):
            pass

    waiting = Thread(target=hold, args=(slow,), daemon=True)
    waiting.start()
    begun.wait(30)
    other = Thread(target=hold, args=(quick,), daemon=True)
    other.start()
    other.join(10)
    stuck = other.is_alive()
    go_on.set()
    waiting.join(10)
    assert not stuck


@pytest.mark.parametrize("kind", LINKS_AND_PIPES)
@pytest.mark.parametrize(
    "name", ["README.md", "hypotheses/h01-x.md", "experimental-results/e.json"]
)
def test_what_is_no_file_of_a_journal_is_told_and_not_shown(tmp_path, name, kind):
    journal = tmp_path / "deep" / "journal"
    journal_at(journal)
    put(journal / name, kind)
    page = journal_page(journal)
    assert SECRET not in page
    assert Path(name).stem in page


def test_a_folder_of_a_journal_that_leads_elsewhere_is_refused(tmp_path):
    journal_at(tmp_path / "journal")
    away = tmp_path / "away"
    away.mkdir()
    (away / "private.md").write_text(SECRET)
    shutil.rmtree(tmp_path / "journal" / "hypotheses")
    (tmp_path / "journal" / "hypotheses").symlink_to(away)
    with pytest.raises(ConfigError, match="leads out of journal"):
        Journal.open(tmp_path / "journal")


def test_nothing_is_written_through_a_link_that_leads_out_of_a_journal(tmp_path):
    journal_at(tmp_path / "journal")
    readme, victim = tmp_path / "journal" / "README.md", tmp_path / "victim"
    victim.write_text(readme.read_text().replace("| H00", "| H99"))
    before = victim.read_text()
    readme.unlink()
    readme.symlink_to(victim)
    with pytest.raises(FlatlineError, match="leads out"):
        board.refresh(Journal.open(tmp_path / "journal"))
    assert victim.read_text() == before


@pytest.mark.parametrize("name", [".lock", ".lock.r0"])
def test_looking_at_a_run_never_writes_through_a_link_in_the_place_of_its_lock(copy, name):
    run = copy("crashed")
    victim = run.parent / "victim"
    victim.write_text("precious")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    state_of(Trace.open(run).run, run)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["a pipe", "a link that leads out", "a link to a device"])
@pytest.mark.parametrize("name", [
    "trainer_state.json", "metrics.jsonl",
    "checkpoint-3/trainer_state.json",
    "wandb/run-1/run-1.wandb", "events.out.tfevents.1", "0.jsonl", "traces/stream/00000.jsonl",
    "mlflow.db",
])  # fmt: skip
def test_an_odd_log_in_a_folder_is_refused_by_name(tmp_path, name, kind):
    folder = tmp_path / "log"
    (folder / name).parent.mkdir(parents=True)
    put(folder / name, kind)
    with pytest.raises(TraceError, match=Path(name).parts[0].partition(".")[0]) as told:
        open_log(folder)
    assert SECRET not in str(told.value)


def test_a_log_that_is_named_itself_may_be_a_link(tmp_path):
    (tmp_path / "real.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.6}\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log.jsonl").symlink_to(tmp_path / "real.jsonl")
    assert len(open_log(tmp_path / "deep" / "log.jsonl").steps) == 2


@pytest.mark.parametrize("ending", ["-journal", "-wal"])
def test_a_pipe_beside_a_database_is_refused(tmp_path, ending):
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        store.execute("CREATE TABLE runs (run_uuid TEXT)")
    os.mkfifo(tmp_path / f"mlflow.db{ending}")
    with pytest.raises(TraceError, match="is a pipe"):
        open_log(tmp_path / "mlflow.db")


def test_a_run_file_of_w_and_b_that_is_nothing_but_zeros_ends(tmp_path):
    file = tmp_path / "run-1.wandb"
    file.write_bytes(b":W&B\x00\x00\x00")
    os.truncate(file, 2**43)
    with pytest.raises(TraceError, match="damaged"):
        open_log(file)


def test_a_refusal_says_what_was_seen_and_what_to_type(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    put(folder / "run.json", "a link that leads out")
    with pytest.raises(RefusedFile, match=r"run\.json is a link that leads out of run.*cp -rL"):
        json_in(folder / "run.json")


@pytest.mark.timeout(600)
def test_some_attacks_of_every_class_are_all_told_or_answered():
    """The whole of it is in tests/quality."""
    script = Path(__file__).parent.parent / "benchmarks" / "fuzz" / "doors.py"
    done = subprocess.run(
        [sys.executable, script, "--few"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
