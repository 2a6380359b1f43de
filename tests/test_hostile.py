"""Text that wants to be obeyed, pushed through every command and page that shows text of others.

Models, documents, run names, logs and titles are all hostile here. What comes out is looked at byte
by byte: nothing a terminal obeys, no element or attribute that a harmless page does not have, no
file outside the folder.
"""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from flatline.cli import app
from flatline.config import RunConfig
from flatline.errors import FlatlineError
from flatline.experiment import load_plan
from flatline.experiment.plan import digest_of
from flatline.journal import Journal, begin
from flatline.journal.entry import read_entry
from flatline.journal.folder import read_text
from flatline.journal.new import add
from flatline.loopback import Bind
from flatline.report import page_of
from flatline.report.web.app import application
from tests.report_pages import Page
from tests.traces import healthy_rows
from tests.web_runs import record

TERMINAL = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m\x1bP1;2q\x9b31m\x90x\x9c\r\b\x7f\x00\x0b"
    "\u202egnp.exe\u202c\u2066x\u2069\u200f\u2028\u2029"
)
"""Titles, clears and colours a terminal, writes over a line, and turns text around."""
MARKUP = (
    "</script></textarea></title><script>alert(1)</script><img src=x onerror=alert(2)>"
    '"\'><svg/onload=alert(3)><a href="javascript:alert(4)">x</a>{{7*7}}{%raw%}${7*7}<!--'
)
"""Ends what it is in, and runs."""
MARKDOWN = (
    "\n\n# owned\n\n<!-- /flatline:status -->\n| a | b |\n[x](javascript:alert(5))![y](x)`\n---\n"
)
FORMULA = "=cmd|'/c calc'!A1"
CONSOLE = "[bold red]x[/bold red][link=http://evil.example]y[/link]"
HOSTILE = TERMINAL + MARKUP + MARKDOWN + FORMULA + CONSOLE
IN_A_NAME = "r\x1b[31m\u202e<img src=x onerror=alert(1)>[bold]'\"&"
"""What a file system allows."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def hostile_rows() -> dict:
    rows = healthy_rows(steps=2, prompts=2, generations=2)
    for row in rows["rollouts"]:
        row |= {"prompt": HOSTILE, "completion": HOSTILE, "gold": HOSTILE, "prompt_id": HOSTILE}
        row |= {"finish": HOSTILE, "parts": {HOSTILE: 0.5}}
    for row in rows["steps"]:
        row["metrics"] = {HOSTILE: 1.0}
    for row in rows["weights"]:
        row |= {"name": HOSTILE, "dtype": HOSTILE}
    rows["vocabulary"] = [{"id": i, "text": HOSTILE} for i in range(100)]
    return rows


def hostile_journal(folder: Path) -> Path:
    begin(folder, RunConfig(task="musique"))
    add(Journal.open(folder), HOSTILE.replace("\n", " "))
    with (folder / "01-experiments-log.md").open("a") as notes:
        notes.write(f"\n{HOSTILE}\n")
    (folder / "experimental-results" / "own.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    run = record(folder / IN_A_NAME, rows=hostile_rows())
    facts = json.loads((run / "run.json").read_text())
    said = {"task": HOSTILE, "model": HOSTILE}
    facts |= {"requested": said, "fault": HOSTILE, "commit": HOSTILE, "created": HOSTILE}
    facts["settings"] |= {"loss_type": HOSTILE}
    (run / "run.json").write_text(json.dumps(facts))
    finding = {"level": "fault", "hypothesis": HOSTILE, "name": HOSTILE}
    (run / "diagnosis.json").write_text(json.dumps({"findings": [finding]}))
    record(folder / "harmless", steps=2)
    hostile_journal(folder / "journal")
    begin(folder / "blank-journal", RunConfig(task="musique"))
    steps = [{"step": n, "reward": 0.5, HOSTILE: n, "kl": HOSTILE} for n in range(30)]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [*steps, HOSTILE]))
    cell = '"' + HOSTILE.replace('"', '""') + '"'
    (folder / "log.csv").write_text(f"step,reward,{cell}\n1,0.5,{cell}\n{cell},1,1\n")
    state = {"log_history": steps, HOSTILE: HOSTILE}
    (folder / f"{IN_A_NAME}.json").write_text(json.dumps(state))
    row = {"question": HOSTILE, "answer": f"{HOSTILE}\n#### 3"}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "broken.jsonl").write_text(f'{{"question": "{HOSTILE}\n')
    (folder / "settings.toml").write_text(f'task = {json.dumps(IN_A_NAME)}\n"{MARKUP[:9]}" = 1\n')
    return folder


COMMANDS = [
    ["show", "{run}"], ["show", "{run}", "--step", "1"],
    ["show", "{run}", "--step", "1", "--rollout", "0"],
    ["show", "{run}", "--step", "1", "--rollout", "0", "--logprobs"],
    ["show", "{here}/" + IN_A_NAME + "-not-there"],
    ["query", "{run}", "SELECT * FROM rollouts"],
    ["query", "{run}", "SELECT * FROM rollouts", "--json"],
    ["query", "{run}", f"SELECT '{TERMINAL}' AS \"{TERMINAL}\" FROM steps".replace("\x00", "")],
    ["query", "{run}", f"SELECT {IN_A_NAME}"],
    ["diagnose", "{run}"], ["diagnose", "{run}", "--json"],
    ["diagnose", "{run}", "--github"],
    ["diagnose", "{here}/log.jsonl"], ["diagnose", "{here}/log.csv"],
    ["diagnose", "{here}/" + IN_A_NAME + ".json"],
    ["diagnose", "{here}/settings.toml"],
    ["diagnose", "{here}/broken.jsonl"],
    ["tasks", "show", "gsm8k", "--data", "{here}/rows.jsonl"],
    ["tasks", "check", "gsm8k", "--data", "{here}/rows.jsonl"],
    ["tasks", "check", "gsm8k", "--data", "{here}/broken.jsonl"],
    ["tasks", "check", "gsm8k", "--data", "./" + IN_A_NAME],
    ["tasks", "check", IN_A_NAME],
    ["journal", "status", "{here}/journal"],
    ["journal", "status", "{here}/journal", "--json"],
    ["journal", "next", "{here}/journal"],
    ["journal", "check", "{here}/journal"],
    ["journal", "resolve", "{here}/journal"],
    ["journal", "new", "{here}/journal", IN_A_NAME],
    ["journal", "status", "{here}/" + IN_A_NAME],
    ["explain", IN_A_NAME],
    ["train", "--config", "{here}/settings.toml", "--dry-run"],
    ["report", "{run}", "-o", "{here}/out.html"],
    ["report", "{run}", "--compare", "{here}/harmless", "-o", "{here}/out.html"],
    ["report", "{here}/journal", "-o", "{here}/out.html"],
    ["report", "{here}/log.jsonl", "-o", "{here}/out.html"],
    ["ui", "{here}/" + IN_A_NAME + "-not-there"],
    ["ui", "{here}", "--host", IN_A_NAME],
    ["evaluate", "gsm8k", "--data", "{here}/broken.jsonl"],
    [IN_A_NAME], ["diagnose", f"--{IN_A_NAME}"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: visible_id(words))
def test_no_command_prints_what_a_terminal_obeys(here, words, monkeypatch):
    monkeypatch.chdir(here)
    run = here / IN_A_NAME
    given = [word.replace("{run}", str(run)).replace("{here}", str(here)) for word in words]
    done = CliRunner().invoke(app, given)
    assert done.exit_code in (0, 1, 2), done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    out = done.stdout_bytes.decode() + done.stderr_bytes.decode()
    assert out and not OBEYED.search(out.replace("\n", "")), OBEYED.search(out.replace("\n", ""))
    assert "Traceback" not in out


def visible_id(words: list[str]) -> str:
    return re.sub(r"[^\w.-]+", "-", " ".join(words))[:60]


PAGES = [
    ("/", None),
    ("/run/{run}", "/run/harmless"),
    ("/rollouts/{run}", "/rollouts/harmless"),
    ("/rollout/{run}?step=1&rollout=0", "/rollout/harmless?step=1&rollout=0"),
    ("/compare?a={run}&b=harmless", "/compare?a=harmless&b=harmless"),
    ("/journal/journal", "/journal/blank-journal"),
    ("/?q={text}", "/?q=harmless"),
    ("/rollouts/{run}?finish={text}&prompt={text}", "/rollouts/harmless?finish=x&prompt=y"),
    ("/rollouts/harmless?order={text}", "/rollouts/harmless?order=x"),
    ("/rollout/harmless?step={text}&rollout=0", "/rollout/harmless?step=x&rollout=0"),
    ("/run/{text}", "/run/nothing"),
    ("/{text}", "/nothing"),
    ("/experiment/{text}", "/experiment/nothing"),
    ("/api/run/{text}/steps", "/run/nothing"),
]


@pytest.fixture(scope="module")
def client(here) -> TestClient:
    bind = Bind(host="127.0.0.1", port=8321, token=None)
    return TestClient(
        application(here, bind), base_url="http://127.0.0.1", raise_server_exceptions=True
    )


def shape(text: str) -> set[tuple[str, str]]:
    """Every element of a page with every name of an attribute of it."""
    return {(tag, name) for tag, attrs in Page(text).tags for name in ("", *attrs)}


PLAIN = {
    *((tag, "") for tag in ("h3", "h4", "hr", "em", "br", "ul", "li")),
    *((tag, "class") for tag in ("a", "td", "th")),
    ("a", "rel"),
    *(("div", name) for name in ("role", "aria-label")),
}
"""What Markdown and tables may add: nothing that loads, runs or looks otherwise."""


def links(text: str) -> list[str]:
    values = [attrs for _, attrs in Page(text).tags]
    return [
        str(attrs[name]) for attrs in values for name in ("href", "src", "action") if name in attrs
    ]


@pytest.mark.parametrize(("address", "harmless"), PAGES)
def test_no_page_has_an_element_or_attribute_that_a_harmless_one_has_not(client, address, harmless):
    filled = address.format(run=quote(IN_A_NAME), text=quote(HOSTILE))
    text = client.get(filled).text
    known = shape(client.get(harmless or "/").text) | shape(client.get("/run/harmless").text)
    known |= shape(client.get("/journal/blank-journal").text) | PLAIN
    assert shape(text) <= known
    assert not OBEYED.search(text.replace("\n", ""))
    assert all(re.match(r"(/(?!/)|#|\?|https?://)", link) for link in links(text)), links(text)


@pytest.mark.parametrize("what", [IN_A_NAME, "journal", "log.jsonl"])
def test_a_written_page_has_no_element_that_a_harmless_one_has_not(here, what):
    harmless = {"journal": here / "blank-journal"}.get(what, here / "harmless")
    text, other = str(page_of(here / what)), str(page_of(harmless))
    assert shape(text) <= shape(other) | PLAIN
    assert Page(text).scripts == Page(other).scripts
    assert not OBEYED.search(text.replace("\n", ""))


def test_a_hostile_title_does_not_break_the_journal_it_is_written_into(here):
    folder = here / "journal"
    reading = Journal.open(folder).read()
    assert not reading.broken
    own = [entry for entry in reading.entries if "owned" in entry.title]
    assert own and "\n" not in own[0].title
    board = read_text(folder / "README.md")
    assert board.count("<!-- /flatline:status -->") == 1
    assert all(file.parent == folder / "hypotheses" for file in (entry.file for entry in own))


@pytest.mark.parametrize("value", [
    "!!python/object/apply:os.system ['touch {made}']",
    "!!python/object/new:subprocess.Popen [['touch', '{made}']]",
    "!!python/name:os.system",
    "!<tag:yaml.org,2002:python/module:os> x",
])  # fmt: skip
def test_no_tag_of_yaml_builds_an_object(tmp_path, value):
    made = tmp_path / "made"
    text = f"---\ncode: H03\ntitle: x\nnote: {value.format(made=made)}\n---\n"
    with pytest.raises(FlatlineError, match="not valid YAML"):
        read_entry(text, Path("h03.md"))
    assert not made.exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", "a\\b", ""])
def test_no_name_of_an_experiment_leaves_its_folder(tmp_path, name):
    text = (
        f"---\ncode: H03\ntitle: x\npriority: high\nstatus: pending\nexperiments: [{name!r}]\n---\n"
    )
    with pytest.raises(FlatlineError):
        read_entry(text, Path("h03.md"))
    values = json.loads((planned(tmp_path) / "plan.json").read_text()) | {"name": name}
    values["digest"] = digest_of(values)
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(FlatlineError):
        load_plan(tmp_path)


def planned(folder: Path) -> Path:
    from flatline.experiment import register
    from tests.experiments import config_plan

    register(config_plan(), folder)
    return folder


BESIDE = {"run.json": "run", "diagnosis.json": "run", "plan.json": "plan", "result.json": "plan"}
BROKEN = ("[" * 100_000, '{"a":' * 100_000, "9" * 5_000, '"\\ud800"', "[1]", "null", "{}", "\x00")


def test_no_file_beside_a_run_crashes_the_pages(tmp_path):
    record(tmp_path / "run", steps=1)
    planned(tmp_path / "plan")
    bind = Bind(host="127.0.0.1", port=8321, token=None)
    client = TestClient(application(tmp_path, bind), base_url="http://127.0.0.1")
    for name, folder in BESIDE.items():
        file = tmp_path / folder / name
        before = file.read_bytes() if file.exists() else None
        for text in BROKEN:
            file.write_text(text)
            for address in ("/", "/run/run", "/experiment/plan"):
                assert client.get(address).status_code in (200, 400, 422), (name, text[:9], address)
        file.unlink() if before is None else file.write_bytes(before)


def test_flatline_writes_no_csv_so_no_formula_reaches_a_spreadsheet():
    import flatline

    sources = Path(flatline.__file__).parent.rglob("*.py")
    written = re.compile(r"csv\.(writer|DictWriter)|(?<!')\.to_csv\((?!')|write_csv")
    assert not [path for path in sources if written.search(path.read_text())]
