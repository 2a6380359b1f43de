"""A diagnosis in a tracker: nothing of a run's text is obeyed there, and real clients take it."""

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from flatline.cli import app
from flatline.diagnosis.renderers import trackers as publishing
from flatline.diagnosis.renderers.trackers import parse, publish
from flatline.diagnosis.renderers.trackers.message import message_of
from flatline.diagnosis.renderers.trackers.wandb_run import _name
from flatline.diagnosis.report import Report
from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Evidence, Finding, HasSign, Level
from flatline.trace.importers import open_log
from flatline.trace.importers.log import Log
from flatline.trace.importers.wandb_file import _records, identity_of
from flatline.trace.importers.wire import messages

SUMMARY, ALERT = 3, 10  # fields of W&B's Record
HOSTILE = (
    "<script>alert(1)</script> <!channel> [click](javascript:alert(1)) ![x](http://evil/x.png) "
    "\x1b[31m\n# heading\n| a | b |\n</div> &lt;img src=x&gt; `code` **bold** \u202egnp"
)


def report(*levels, text="Seen here.", first=9):
    findings = [
        Finding(
            hypothesis=f"H{first + at:02}",
            name="loss-mask-as-attention",
            level=level,
            text=text,
            evidence=(Evidence(text=text, step=1, rollout=0),),
            fix="Pass the attention mask.",
        )
        for at, level in enumerate(levels)
    ]
    return Report(subject="runs/x", findings=tuple(findings), trend=None)


def test_the_message_says_what_is_broken_and_what_to_do():
    message = message_of(report(Level.FAULT, Level.OK, Level.UNKNOWN))
    assert message.values["verdict"] == "fault"
    assert message.values["cause"] == "H09 loss-mask-as-attention"
    assert (message.values["tested"], message.values["hypotheses"]) == (2, 3)
    assert message.fault and message.alert
    assert "**Do:** Pass the attention mask." in message.markdown


@pytest.mark.parametrize(
    ("levels", "verdict"), [([Level.OK] * 38, "healthy"), ([Level.UNKNOWN], "not enough to tell")]
)
def test_nothing_found_is_no_alert(levels, verdict):
    message = message_of(report(*levels, first=2))  # to H39: the common causes
    assert message.values["verdict"] == verdict
    assert not message.alert and not message.fault


def test_no_text_of_a_run_is_obeyed_by_what_shows_it():
    message = message_of(report(Level.SUSPECT, text=HOSTILE))
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(message.markdown)
    for tag in ("<script", "<!channel", "<a ", "<img", "<table", "</div", "<em>"):
        assert tag not in html
    assert html.count("<h1>") == 1 and html.count("<h2>") == 0
    for text in (message.title, message.alert, message.markdown, str(message.values["summary"])):
        assert "\x1b" not in text and "\u202e" not in text
    assert "<" not in message.alert and "<" not in message.title


# --- targets ---


@pytest.mark.parametrize("text", ["wandb", "wandb:", "neptune:x", "x", ""])
def test_a_target_that_names_no_tracker_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match="tensorboard:runs/x"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensorboard:not-there", "no folder not-there"),
        ("mlflow:mlflow.db", "does not say which run"),
        ("wandb:project", "neither a folder nor a run"),
        ("trackio:project", "does not say which run"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_read(text, words, monkeypatch):
    monkeypatch.setattr(publishing, "_is_there", lambda module: True)
    done = CliRunner().invoke(app, ["diagnose", "no-such-log.jsonl", "--to", text])
    assert done.exit_code == 2
    assert words in done.stderr and "no-such-log" not in done.stderr


def test_a_missing_client_is_an_error_that_says_what_to_type(monkeypatch):
    monkeypatch.setattr(publishing, "_is_there", lambda module: False)
    with pytest.raises(ConfigError, match="pip install wandb"):
        parse("wandb:team/project/run")


def test_a_password_in_an_address_is_not_repeated(monkeypatch):
    monkeypatch.setattr(publishing, "_is_there", lambda module: False)
    with pytest.raises(ConfigError) as caught:
        parse("mlflow:https://me:secret@host#run")
    assert "secret" not in str(caught.value)


def test_what_a_client_throws_is_an_error_for_a_user(monkeypatch):
    def fails(where, message):
        print("chatter")
        raise RuntimeError("no route to host")

    monkeypatch.setattr(publishing, "_writer", lambda kind: SimpleNamespace(write=fails))
    with pytest.raises(ConfigError, match="no route to host"):
        publish(report(Level.OK), publishing.Target(kind="wandb", where="a/b/c"))


# --- W&B ---


def test_a_wandb_run_is_named_with_or_without_its_entity():
    assert _name("team/project/abc")[:3] == ("team", "project", "abc")
    assert _name("project/abc")[:3] == (None, "project", "abc")
    with pytest.raises(ConfigError, match="ENTITY/PROJECT/RUN"):
        _name("abc")


def test_wandb_takes_the_diagnosis_of_an_offline_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(project="p", id="abc123", dir=tmp_path) as run:
        run.log({"train/reward": 0.5, "train/global_step": 1})
    wandb.teardown()  # its service writes the file; a process that ends waits for it
    before = set(tmp_path.glob("wandb/offline-run-*"))
    folder = before.pop()
    publish(report(Level.FAULT), parse(f"wandb:{folder}"))
    wandb.teardown()
    (written,) = [one for one in tmp_path.glob("wandb/offline-run-*") if one != folder]
    path = next(written.glob("*.wandb"))
    assert identity_of(path)[1:] == ("p", "abc123")
    records = [record for _, record in _records(path.read_bytes(), Log(source="", path=path))]
    summaries = [one for record in records for one in messages(record, SUMMARY)]
    assert any(b"H09 loss-mask-as-attention" in one for one in summaries)
    alerts = [one for record in records for one in messages(record, ALERT)]
    assert [b"flatline: H09" in one for one in alerts] == [True]


# --- MLflow ---


def test_mlflow_takes_the_diagnosis_as_tags_and_an_artifact(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking")
    path = tmp_path / "mlflow.db"
    client = tracking.MlflowClient(f"sqlite:///{path}")
    run = client.create_run(client.create_experiment("x", f"file://{tmp_path}/art")).info.run_id
    publish(report(Level.FAULT, text=HOSTILE), parse(f"mlflow:{path}#{run}"))
    tags = client.get_run(run).data.tags
    assert tags["flatline.verdict"] == "fault"
    assert tags["flatline.cause"] == "H09 loss-mask-as-attention"
    page = Path(client.download_artifacts(run, "flatline/diagnosis.md", str(tmp_path)))
    assert "<script" not in page.read_text()
    with pytest.raises(ConfigError, match="nobody"):
        publish(report(Level.OK), parse(f"mlflow:{path}#nobody"))


# --- TensorBoard ---


def test_tensorboard_takes_the_diagnosis_beside_the_scalars(tmp_path):
    writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/reward", 0.5, 1)
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "reward": 0.5}\n')
    result = CliRunner().invoke(
        app, ["diagnose", str(log), "--json", "--to", f"tensorboard:{tmp_path}"]
    )
    assert json.loads(result.stdout)["version"] == 1
    assert "Written to the texts of" in result.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.glob("*tfevents*"))
    asked = sum(isinstance(one, HasSign) for one in HYPOTHESES)
    tested = f"None of {asked} causes could be tested"
    assert b"flatline/diagnosis" in written and tested.encode() in written
    log.unlink()
    assert open_log(tmp_path).steps["reward"].tolist() == [0.5]


# --- trackio ---


def test_trackio_takes_the_diagnosis_as_a_report_and_an_alert(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    trackio.init(project="proj", name="run1", **quiet)
    trackio.log({"reward": 0.5}, step=0)
    trackio.finish()
    publish(report(Level.SUSPECT), parse("trackio:proj/run1"))
    with sqlite3.connect(next(tmp_path.rglob("proj.db"))) as store:
        rows = [json.loads(row[0]) for row in store.execute("SELECT metrics FROM metrics")]
        alerts = store.execute("SELECT title, level FROM alerts").fetchall()
    store.close()
    assert "loss-mask-as-attention" in rows[-1]["flatline/diagnosis"]["_value"]
    assert alerts == [("flatline: H09 loss-mask-as-attention (suspect)", "warn")]
    with pytest.raises(ConfigError, match="does not exist"):
        publish(report(Level.OK), parse("trackio:proj/other"))
