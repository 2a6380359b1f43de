"""The live pages, asked without a browser."""

import html
import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flatline.cli.ui import ui
from flatline.errors import ConfigError, TraceError
from flatline.experiment import load_plan, register
from flatline.loopback import Bind
from flatline.report.web import diagnoses, run_index, run_making
from flatline.report.web.app import application
from flatline.report.web.run_index import NotFoundHere, Root
from flatline.trace.folder import RUN_FILE
from tests.experiments import config_plan
from tests.traces import healthy_rows
from tests.web_runs import HOSTILE, begin, hostile_rows, investigate, log, record

PAGES = (
    "/",
    "/run/deep/healthy",
    "/rollouts/deep/healthy",
    "/rollout/deep/healthy?step=1&rollout=0",
    "/compare",
    "/compare?a=deep/healthy&b=hostile",
    "/compare?a=deep/healthy&b=hostile&step_a=1&rollout_a=0&step_b=1&rollout_b=1",
    "/run/hostile",
    "/rollouts/hostile",
    "/rollout/hostile?step=1&rollout=0",
    "/run/nothing",
    "/journal/investigation",
    "/experiment/investigation/experiments/kl",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    record(made / "deep" / "healthy", steps=6)
    record(made / "hostile", rows=hostile_rows())
    investigate(made / "investigation")
    return made


@pytest.fixture(scope="module")
def client(folder) -> TestClient:
    return asking(folder)


def asking(path: Path) -> TestClient:
    here = Bind(host="127.0.0.1", port=8321, token=None)
    return TestClient(application(path, here), base_url="http://127.0.0.1:8321")


@pytest.mark.parametrize("address", PAGES)
def test_no_page_has_a_script_a_style_or_hidden_characters_inside(client, address):
    answer = client.get(address)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*(?: src=| type=\"application/json\"))", answer.text)
    assert not re.search(r"<[^>]+\s(?:style|on\w+)\s*=", answer.text)
    assert "<style" not in answer.text
    assert not set("\x00\x1b\u202e\u2066") & set(answer.text)
    assert HOSTILE not in answer.text and "window.hacked=1</script>" not in answer.text


def test_every_link_of_every_page_leads_somewhere(client):
    seen, open_ = set(), ["/"]
    while open_ and len(seen) < 60:
        address = open_.pop(0)
        answer = client.get(address)
        assert answer.status_code == 200, address
        page = answer.text if answer.headers["content-type"].startswith("text/html") else ""
        found = re.findall(r'(?:href|src)="([^"#]+)"', page)
        links = {link.replace("&amp;", "&") for link in found}
        links = {address.split("?")[0] + link if link[0] == "?" else link for link in links}
        assert all(link.startswith("/") for link in links), links
        seen.add(address)
        open_ += sorted(links - seen - set(open_))


def test_another_host_name_gets_nothing(client):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    "name", ["..", "../outside", "deep/../../outside", "/etc", "", "deep//healthy", "a\\b", "link"]
)
def test_a_name_cannot_leave_the_folder(folder, name, tmp_path_factory):
    outside = record(folder.parent / "outside", steps=1) if name == "../outside" else folder.parent
    link = folder / "link"
    if name == "link" and not link.exists():
        link.symlink_to(record(tmp_path_factory.mktemp("away") / "run", steps=1))
    with pytest.raises(NotFoundHere):
        Root(folder).run(name)
    assert outside.exists()


@pytest.mark.parametrize(
    "address", ["/run/%2e%2e/outside", "/rollouts/..%2f..", "/api/run/../steps"]
)
def test_an_address_cannot_leave_the_folder(client, address):
    assert client.get(address).status_code == 404


def test_a_page_that_the_browser_has_is_not_sent_again(client):
    for address in ("/run/deep/healthy", "/api/run/deep/healthy/steps?after=2"):
        first = client.get(address)
        again = client.get(address, headers={"if-none-match": first.headers["etag"]})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_new_steps_are_seen_while_a_run_records(tmp_path):
    rows = healthy_rows(steps=3, prompts=2, generations=2)
    recorder = begin(tmp_path / "live", rows)
    log(recorder, rows, 1)
    client, address = asking(tmp_path), "/api/run/live/steps?after=1"
    before = client.get(address)
    assert (before.json()["state"], before.json()["steps"]) == ("still running", [])
    log(recorder, rows, 2)
    after = client.get(address, headers={"if-none-match": before.headers["etag"]})
    assert [row["step"] for row in after.json()["steps"]] == [2]
    assert "still training" in client.get("/run/live").text
    recorder.close()
    assert client.get(address).json()["state"] == "finished"
    assert "still training" not in client.get("/run/live").text


def test_a_diagnosed_run_is_listed_with_its_answer_and_found_by_its_code(tmp_path):
    run = record(tmp_path / "a", steps=2)
    record(tmp_path / "b", steps=2)
    first = {"level": "fault", "hypothesis": "H09", "name": "loss-mask-as-attention"}
    said = {"headline": "Your trainer cannot see the question.", "findings": [first]}
    (run / "diagnosis.json").write_text(json.dumps(said))
    listed = asking(tmp_path).get("/", params={"q": "h09"}).text
    assert "Your trainer cannot see the question.</span>" in listed
    shown = [row for row in listed.split("<tr")[2:] if not row.startswith(" hidden")]
    assert len(shown) == 1 and "not diagnosed yet" not in shown[0]


def test_a_run_of_another_schema_is_listed_with_the_reason(tmp_path):
    path = record(tmp_path / "future", steps=1)
    facts = json.loads((path / RUN_FILE).read_text())
    (path / RUN_FILE).write_text(json.dumps({**facts, "schema": 99}))
    client = asking(tmp_path)
    assert "was recorded with trace schema 99" in client.get("/").text
    answer = client.get("/run/future")
    assert answer.status_code == 422 and "Read it with flatline" in answer.text


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", 72),
        ("from=2&to=3", 24),
        ("group=0", 24),
        ("least=0.95", None),
        ("finish=%27%20OR%201=1%20--", 0),
        ("prompt=p1-0", 4),
        ("hypothesis=H99", 0),
    ],
)
def test_filters_choose_rollouts(client, query, shown):
    text = client.get(f"/rollouts/deep/healthy?{query}").text
    total = int(re.search(r"([\d,]+) rollouts", text)[1].replace(",", ""))
    assert total == shown if shown is not None else 0 < total < 72


def test_a_reward_filter_and_an_order_hold_for_every_row(client):
    text = client.get("/rollouts/deep/healthy?least=0.5&most=0.95&order=best").text
    rewards = [float(x) for x in re.findall(r'<td class="number">(\d\.\d+)</td>', text)]
    assert rewards and rewards == sorted(rewards, reverse=True)
    assert all(0.5 <= reward <= 0.95 for reward in rewards)


def test_pages_of_rollouts_follow_each_other_without_a_gap(client):
    seen = []
    for page in (1, 2):
        text = client.get(f"/rollouts/deep/healthy?page={page}").text
        seen += re.findall(r"step=(\d+)&amp;rollout=(\d+)", text)
    assert len(seen) == len(set(seen)) == 72


@pytest.mark.parametrize(
    "query", ["from=abc", "least=1;DROP", "order=reward;--", "page=x", "group=99999999999999999999"]
)
def test_a_filter_that_cannot_be_read_is_said_and_not_ignored(client, query):
    answer = client.get(f"/rollouts/deep/healthy?{query}")
    assert answer.status_code == 400
    assert (
        "is not a number" in answer.text
        or "There is no order" in answer.text
        or "too large" in answer.text
    )


def test_a_broken_plan_is_a_message_and_not_a_crash(tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "plan.json").write_text("{")
    answer = asking(tmp_path).get("/experiment/odd")
    assert answer.status_code in (400, 422) and "plan.json" in answer.text


def test_any_name_of_a_run_can_be_linked_to(tmp_path):
    name = "we?ird #1% <b>&\"'{{7*7}}"
    record(tmp_path / name, steps=2)
    (tmp_path / os.fsdecode(b"not-text-\xff")).mkdir()
    client = asking(tmp_path)
    link = re.search(r'class="row" href="([^"]+)"', client.get("/").text)[1]
    text = client.get(html.unescape(link)).text
    assert html.unescape(re.search(r"<h1>(.*)</h1>", text)[1]) == name
    inner = re.search(r'href="(/rollouts/[^"]+)"', text)[1]
    assert "24 rollouts" in client.get(html.unescape(inner)).text


def test_a_run_that_cannot_be_read_does_not_take_the_list_with_it(tmp_path, monkeypatch):
    record(tmp_path / "good", steps=1)
    record(tmp_path / "gone", steps=1)
    real = run_index.signature

    def failing(path, *more):
        if path.name == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, *more)

    monkeypatch.setattr(run_index, "signature", failing)
    text = asking(tmp_path).get("/").text
    assert "It cannot be read: No such file or directory." in text and "/run/good" in text


@pytest.fixture
def experiment(tmp_path):
    """An experiment whose control of seed 0 has finished, and whose seed 1 trains."""
    folder = tmp_path
    plan = register(config_plan(), folder / "experiments" / "kl")
    name = plan.control.digest
    record(folder / "runs" / f"{name}-s0", steps=2)
    rows = healthy_rows(steps=2)
    recorder = begin(folder / "runs" / f"{name}-s1", rows)
    log(recorder, rows, 1)
    facts = {"arm": plan.control.name, "role": "control", "seed": 0, "status": "finished"}
    facts |= {"value": 0.1, "before": 0.5, "after": 0.6, "seconds": 60, "level": "ok", "text": ""}
    traces = [f"../../runs/{name}-s0", "../../../outside", "\0", None]
    runs = [{**facts, "trace": trace, "seed": -at} for at, trace in enumerate(traces)]
    result = {"version": 1, "plan": plan.digest, "runs": runs, "looks": [], "verdict": None}
    (folder / "experiments" / "kl" / "result.json").write_text(json.dumps(result))
    yield folder / "experiments" / "kl"
    recorder.close()


def test_an_experiment_links_to_its_runs_and_to_no_others(tmp_path, experiment):
    name = load_plan(experiment).control.digest
    text = asking(tmp_path).get("/experiment/experiments/kl").text
    assert set(re.findall(r'href="/run/([^"]+)"', text)) == {f"runs/{name}-s0", f"runs/{name}-s1"}
    under_way = text[text.index("Not counted yet") :]
    assert f"runs/{name}-s1" in under_way and "still running, step 1" in under_way
    alone = asking(tmp_path / "experiments").get("/experiment/kl").text
    assert "/run/" not in alone


def test_a_journal_links_to_its_experiments_and_runs_and_is_sent_again_once_changed(
    tmp_path, experiment
):
    plan = load_plan(experiment)
    investigate(tmp_path / "journal")
    kept = {"plan": {"digest": plan.digest}, "result": {"runs": [{"role": "control", "seed": 0}]}}
    kept["result"]["runs"][0]["folder"] = f"{plan.control.digest}-s0"
    results = tmp_path / "journal" / "experimental-results"
    (results / "kl.json").write_text(json.dumps(kept))
    (results / "other.json").write_text(json.dumps({"plan": 3, "result": {"runs": [1, {}]}}))
    client = asking(tmp_path)
    answer = client.get("/journal/journal")
    links = set(re.findall(r'href="(/(?:run|experiment)/[^"]+)"', answer.text))
    assert links == {"/experiment/experiments/kl", f"/run/runs/{plan.control.digest}-s0"}
    tag = {"if-none-match": answer.headers["etag"]}
    assert client.get("/journal/journal", headers=tag).status_code == 304
    with (tmp_path / "journal" / "01-experiments-log.md").open("a") as notes:
        notes.write("Something new.\n")
    assert "Something new." in client.get("/journal/journal", headers=tag).text


def listed_once_diagnosed(client) -> str:
    """The list, once no diagnosis is under way."""
    for _ in range(400):
        text = client.get("/").text
        if "under-way" not in text:
            return text
        time.sleep(0.05)
    raise AssertionError("it is still being diagnosed")


def test_a_run_is_diagnosed_from_the_list_and_nothing_is_written(tmp_path):
    record(tmp_path / "a", steps=6)
    (tmp_path / "own-loop.csv").write_bytes((LOGS / "own-loop.csv").read_bytes())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    client = asking(tmp_path)
    assert client.get("/").text.count("not diagnosed yet") == 2
    for name in ("a", "own-loop.csv"):
        answer = client.post(f"/diagnose/{name}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
    text = listed_once_diagnosed(client)
    assert "not diagnosed yet" not in text and text.count("said-verdict") == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_a_page_of_another_site_cannot_have_a_run_diagnosed(tmp_path, headers):
    record(tmp_path / "a", steps=2)
    client = asking(tmp_path)
    assert client.post("/diagnose/a", headers=headers).status_code == 403
    assert client.get("/diagnose/a").status_code == 405
    text = client.get("/").text
    assert "not diagnosed yet" in text and "under-way" not in text


def test_what_is_not_a_run_is_not_diagnosed(client):
    for name in ("none", "../outside", "investigation"):
        assert client.post(f"/diagnose/{name}").status_code == 404


def test_why_a_run_could_not_be_diagnosed_is_told_and_it_can_be_asked_again(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise TraceError("The disk is gone.")

    record(tmp_path / "a", steps=2)
    client = asking(tmp_path)
    with monkeypatch.context() as failing:
        failing.setattr(diagnoses, "diagnose", broken)
        client.post("/diagnose/a")
        text = listed_once_diagnosed(client)
    assert "The disk is gone." in text and "said-verdict" not in text
    client.post("/diagnose/a")
    assert "said-verdict" in listed_once_diagnosed(client)


def test_two_browsers_at_once_see_the_same(folder):
    client = asking(folder)
    client.get("/run/deep/healthy")  # its diagnosis adds to what other pages offer
    addresses = [*PAGES[1:4], PAGES[5]] * 6
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda address: client.get(address).text, addresses))
    assert len(set(zip(addresses, found, strict=True))) == 4


def test_a_port_in_use_is_refused_with_another_to_type(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port + 1}"):
            ui(folder, port)


def test_the_page_of_a_large_run_says_that_it_is_being_made(tmp_path, monkeypatch):
    monkeypatch.setattr(run_making, "SMALL", 10)
    record(tmp_path / "large", steps=4)
    client = asking(tmp_path)
    first = client.get("/run/large").text
    assert "Every hypothesis is looking at 48 rollouts" in first
    for _ in range(200):
        text = client.get("/run/large").text
        if "What was recorded" in text:
            break
        time.sleep(0.05)
    assert 'data-fresh="yes"' in text and "causes could not be tested" in text


LOGS = Path(__file__).parents[1] / "docs" / "real-logs"


def test_logs_are_listed_and_shown_beside_runs(tmp_path):
    record(tmp_path / "recorded", steps=6)
    (tmp_path / "notes.json").write_text('{"no": "log"}')
    for name in ("grpo-lora.json", "own-loop.csv"):
        (tmp_path / name).write_bytes((LOGS / name).read_bytes())
    browser = asking(tmp_path)
    listed = browser.get("/").text
    assert "grpo-lora.json" in listed and "own-loop.csv" in listed
    assert "notes.json" not in listed
    page = browser.get("/run/grpo-lora.json").text
    assert "What the numbers say" in page
    assert "From row to row the reward follows" in page
    assert browser.get("/run/notes.json").status_code == 404
    assert browser.get("/rollouts/grpo-lora.json").status_code == 200


def test_one_log_is_shown_by_itself(tmp_path):
    path = tmp_path / "own-loop.csv"
    path.write_bytes((LOGS / path.name).read_bytes())
    (tmp_path / "other.csv").write_bytes(path.read_bytes())
    browser = asking(path)
    assert "What the numbers say" in browser.get("/").text
    assert browser.get("/run/other.csv").status_code == 404
