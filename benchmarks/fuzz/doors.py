"""Does anything come in that nobody asked for, is anything lost without a word, does anything wait
for ever?

    python benchmarks/fuzz/doors.py [--few] [--only CLASS ...]

Attacks every place where something of somebody else comes in, on this machine alone, and prints a
row a class: links, pipes, devices, sockets, folders and endless files in the place of every file of
a run, a journal or a log; odd bytes on a socket of `flatline ui`; extreme settings for `flatline
serve`; SQL statements; texts that a terminal, a page or a CI runner would obey, in every field.

A case is *told* where it is refused or named to the user, *answered* where a sound answer came. It
is *silent* where something was lost or shown without a word, and *hangs* where it takes more than
40 seconds. `--few` takes some cases of each class, for `make test`. Exits with 1 unless every case
was told or answered.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from tests.journals import journal_at
from tests.odd_files import ODD, SECRET, put
from tests.traces import healthy_rows, healthy_trace
from tests.web_runs import record

from flatline.diagnosis.report import diagnose
from flatline.errors import FlatlineError
from flatline.heldout import read_scores
from flatline.loopback import Bind
from flatline.report.journal_page import journal_page
from flatline.report.run_state import state_of
from flatline.report.web.app import application
from flatline.serve.errors import RequestError
from flatline.trace import Trace
from flatline.trace.importers import open_log

LONGEST = 40
TOLD, ANSWERED, SILENT, HANG, CRASH = "told", "answered", "silent", "hang", "crash"
Case = tuple[str, Callable[[], str]]
LOGS = (
    *("trainer_state.json", "checkpoint-3/trainer_state.json", "metrics.jsonl", "results.jsonl"),
    *("run-1.wandb", "wandb/run-1/run-1.wandb", "events.out.tfevents.1", "mlflow.db", "0.jsonl"),
    *("traces/stream/00000.jsonl", "train_data_step1.jsonl", "token_exports/step_1/rank_0.jsonl"),
)
ADDRESSES = ("/", "/run/x", "/rollouts/x", "/rollout/x?step=1&rollout=0", "/api/run/x/steps")
EXTREMES = (
    *(0, -0.0, 5e-324, 1e-320, 1e-45, 1e-39, 1e-30, 1e-10, 0.5, 1, 2, 1e6, 1e38, 1e39, 1e308),
    *(-5e-324, -1, -1e308, True, "1", [], {}, 2**31, 2**63, 10**30, -(10**30), 10**400),
    *(float("nan"), float("inf"), None, "\ud800", [None], {"a": {}}),
)
SETTINGS = (
    *("temperature", "top_p", "min_p", "top_k", "max_tokens", "max_completion_tokens", "n", "seed"),
    *("logprobs", "top_logprobs", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *(
        "logit_bias",
        "stop",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "messages",
        "model",
    ),
)
VALUES = (
    *("TIMESTAMP '290000-01-01'", "TIMESTAMP 'infinity'", "DATE '-infinity'", "TIME '24:00:00'"),
    *("'12:34:56+02'::TIMETZ", "INTERVAL 3 YEARS", "union_value(a := 1)", "'x'::ENUM ('x')"),
    *("MAP {'a': 1}", "MAP {1: 2}", "MAP([[1]], [2])", "[[1, NULL], []]", "{'a': {'b': [1]}}"),
    *("170141183460469231731687303715884105727::HUGEINT", "'nan'::DOUBLE", "'inf'::FLOAT"),
    *("340282366920938463463374607431768211455::UHUGEINT", "1.5::DECIMAL(38, 2)", "uuid()"),
    *("'\\xAA'::BLOB", "'0101'::BIT", "1::VARIANT", "array_value(1, 2)", "NULL", "chr(0)"),
    *("epoch_ms(9223372036854775)", "'{}'::JSON", "[DATE 'infinity']", "repeat('x', 100000)"),
)
STATEMENTS = (
    *(f"SELECT {value} AS v" for value in VALUES),
    *(f"SELECT [{value}] AS v, {{'a': {value}}} AS v" for value in VALUES),
    *("", ";", "/* x */", "SELECT", "SELECT 1; SELECT 2", "SELECT 1 AS a, 2 AS a, 3 AS a_1"),
    *(
        "SELECT * FROM test_all_types()",
        "SELECT steps FROM steps",
        "EXPLAIN SELECT 1",
        "SHOW TABLES",
    ),
    *("SELECT * FROM '/etc/passwd'", "SELECT * FROM read_csv('/etc/passwd')", "COPY steps TO 'x'"),
    *("ATTACH 'x.db'", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true"),
    *("SELECT getenv('HOME')", "PRAGMA version", "DROP VIEW steps", "CREATE TABLE steps (a INT)"),
    *(
        "SELECT '\udc80'",
        "SELECT " + "(" * 1000,
        "SELECT error('::error::x')",
        "\0",
        "SELECT 1 / 0",
    ),
    *(
        "SELECT interval '1 year' * 1e9",
        "SELECT unnest([1, 2]) a, unnest([3]) a",
        "VALUES (1), (2)",
    ),
)
REQUESTS = (
    *(b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"\0" * 100),
    *(b"GET /" + b"a" * size + b" HTTP/1.1\r\nHost: HERE\r\n\r\n" for size in (100, 10**4, 10**5)),
    *(
        b"GET / HTTP/1.1\r\nHost: HERE\r\nX: " + b"a" * size + b"\r\n\r\n"
        for size in (10**4, 10**6)
    ),
    b"GET / HTTP/1.1\r\nHost: HERE\r\n" + b"X: y\r\n" * 10**4 + b"\r\n",
    *(
        b"GET " + path + b" HTTP/1.1\r\nHost: HERE\r\nConnection: close\r\n\r\n"
        for path in (
            *(
                b"/run/../../etc/passwd",
                b"/run/%2e%2e%2f%2e%2e%2fetc",
                b"//evil",
                b"/run/x%00",
                b"*",
            ),
            *(b"/rollout/x?step=-1&rollout=1", b"/rollout/x?step=1e9&rollout=x", b"/assets/../x"),
            *(
                b"/rollouts/x?page=999999999&sort=x",
                b"/compare?a=x&b=%ff",
                b"/\xff\xfe",
                b"/run/%ud800",
            ),
            *(b"http://evil/", b"/run/x?" + b"a=1&" * 2000, b"/api/run/x/steps?after=99999999999"),
        )
    ),
    *(
        method + b" / HTTP/1.1\r\nHost: HERE\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        for method in (b"POST", b"PUT", b"TRACE", b"OPTIONS", b"CONNECT", b"X" * 5000, b"\x80")
    ),
    *(
        b"POST / HTTP/1.1\r\nHost: HERE\r\n" + head + b"\r\n\r\n" + body
        for head, body in (
            (b"Content-Length: 99999999", b"x"),
            (b"Content-Length: -1", b""),
            (b"Content-Length: 1\r\nContent-Length: 2", b"x"),
            (b"Content-Length: 1\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
            (b"Transfer-Encoding: chunked", b"FFFFFFFFFFFFFFFF\r\nx"),
            (b"Transfer-Encoding: chunked", b"zz\r\n"),
            (b"Expect: 100-continue\r\nContent-Length: 5", b""),
            (b"Upgrade: websocket\r\nConnection: Upgrade", b""),
        )
    ),
    *(
        b"GET / HTTP/9.9\r\nHost: HERE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\n",
    ),
)
PAYLOADS = (
    *("\x1b]0;owned\x07\x1b[2J", "\r\x9b31m", "\u202egnp.exe\u2066", "a\n::add-mask::x\n", "\0"),
    *("x\n  ::error title=x::y", "##[add-mask]x", "##vso[task.setvariable variable=x]y", "\ud800"),
    *(
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "</textarea><svg onload=alert(1)>",
    ),
    *('"><a href="javascript:alert(1)">x</a>', "{{7*7}}{%raw%}${7*7}", "<!-- /flatline:status -->"),
    *(
        "[bold red]x[/bold red]",
        "=cmd|'/c calc'!A1",
        "../../../etc/passwd",
        "%0A::error::x",
        "x" * 10**5,
    ),
    *(
        "##teamcity[buildStatus]",
        "\n---\n# owned\n",
        "[x](javascript:alert(1))",
        "\u2028\u2029\x85",
        "`$(id)`",
    ),
)
OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]|##\\w*\\[")


class Silent(Exception):
    """Something was lost, or shown, without a word."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--few", action="store_true", help="some cases of each class")
    parser.add_argument("--only", nargs="+", choices=[*CLASSES], default=[*CLASSES])
    options = parser.parse_args()
    print(f"| class | cases | {' | '.join((TOLD, ANSWERED, SILENT, HANG, CRASH))} | seconds |")
    print(f"|---|{'---:|' * 7}")
    bad = 0
    for name in options.only:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            cases = CLASSES[name](Path(folder))
            every = 23 if options.few else 1  # a prime: no kind of odd file is left out for ever
            counts = Counter(tried(*case) for at, case in enumerate(cases) if at % every == 0)
        bad += counts[SILENT] + counts[HANG] + counts[CRASH]
        columns = " | ".join(f"{counts[kind]:,}" for kind in (TOLD, ANSWERED, SILENT, HANG, CRASH))
        seconds = time.monotonic() - began
        print(f"| {name} | {counts.total():,} | {columns} | {seconds:.0f} |", flush=True)
    return 1 if bad else 0


def tried(name: str, attack: Callable[[], str]) -> str:
    """What came of one case."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        return attack()
    except (FlatlineError, RequestError):
        return TOLD
    except TimeoutError:
        found, why = HANG, ""
    except Silent as error:
        found, why = SILENT, str(error)
    except Exception as error:
        found, why = CRASH, repr(error)
    finally:
        signal.alarm(0)
    print(f"{found}: {name} {why}", file=sys.stderr)
    return found


def insist(holds: bool, why: str = "") -> None:
    if not holds:
        raise Silent(why)


def run_files(place: Path) -> Iterator[Case]:
    """Every file of a run, in the readers of traces."""
    for made in (record(place / "a", steps=2), record(place / "b", steps=2, clean=False)):
        for name in sorted(file.name for file in made.iterdir() if not file.name.startswith(".")):
            for kind in ODD:
                yield f"{name}: {kind}", lambda n=name, k=kind, m=made: _run_file(m, place, n, k)


def _run_file(made: Path, place: Path, name: str, kind: str) -> str:
    run = Path(shutil.copytree(made, place / "x" / "x", dirs_exist_ok=True))
    try:
        put(run / name, kind)
        trace = open_log(run)
        diagnose(trace, name="x")
        trace.text(0)  # what a diagnosis does not read
        told = "\n".join(trace.caveats)
        insist(name.rpartition(".")[0] in told, told)
        insist(SECRET not in told, told)
        return TOLD
    finally:
        shutil.rmtree(place / "x")


def locks(place: Path) -> Iterator[Case]:
    """What is written to, in the look whether a run still trains."""
    made = record(place / "a", steps=1, clean=False)
    victim = place / "victim"

    def attack(name: str) -> str:
        victim.write_text("precious")
        (made / name).unlink(missing_ok=True)
        (made / name).symlink_to(victim)
        state_of(Trace.open(made).run, made)
        insist(victim.read_text() == "precious", "a file outside was written to")
        return ANSWERED

    for name in (".lock", ".lock.r0"):
        yield name, lambda n=name: attack(n)


def held_out(place: Path) -> Iterator[Case]:
    for kind in ODD:
        folder = place / kind
        folder.mkdir()
        put(folder / "heldout.jsonl", kind)
        yield kind, lambda f=folder: (read_scores(f), insist(False, "read as no scores"))[0] or ""


def journals(place: Path) -> Iterator[Case]:
    """Every file of a journal, and some that it may have, in its page."""
    journal = journal_at(place / "made").path
    there = [file.relative_to(journal) for file in journal.rglob("*") if file.suffix == ".md"]
    shown = [name for name in there if name.parts[0] != "experimental-results"]
    more = [Path("experimental-results/e.json"), Path("fixes/own.md"), Path("hypotheses/own.md")]
    for name in (*shown, *more):
        for kind in ODD:
            yield f"{name}: {kind}", lambda n=name, k=kind: _journal(journal, place, n, k)


def _journal(journal: Path, place: Path, name: Path, kind: str) -> str:
    copy = Path(shutil.copytree(journal, place / "copy"))
    try:
        put(copy / name, kind)
        page = journal_page(copy)
        insist(SECRET not in page, "another file is shown")
        insist(name.stem in page, "it is not named")
        return TOLD
    finally:
        shutil.rmtree(copy)


def logs(place: Path) -> Iterator[Case]:
    def attack(name: str, kind: str) -> str:
        folder = place / "log"
        (folder / name).parent.mkdir(parents=True)
        try:
            put(folder / name, kind)
            open_log(folder)
            raise Silent("it was read")
        finally:
            shutil.rmtree(folder)

    for name in LOGS:
        for kind in ODD:
            yield f"{name}: {kind}", lambda n=name, k=kind: attack(n, k)


def pages(place: Path) -> Iterator[Case]:
    """All files of a run at once, behind every address; a sound run is answered all the same."""
    from starlette.testclient import TestClient

    record(place / "sound", steps=1)
    bind = Bind(host="127.0.0.1", port=8000, token=None)
    client = TestClient(application(place, bind), base_url="http://127.0.0.1:8000")

    def attack(kind: str, name: str, address: str) -> str:
        run = record(place / "x", steps=1)
        try:
            put(run / name, kind)
            found = client.get(address)
            insist(found.status_code < 500 and SECRET not in found.text, found.text[-300:])
            insist(client.get("/run/sound").status_code == 200, "a sound run is not answered")
            return ANSWERED if found.status_code == 200 else TOLD
        finally:
            shutil.rmtree(run)

    for kind in ODD:
        for name in ("run.json", "steps.r0.0.parquet", "heldout.jsonl", "diagnosis.json"):
            for address in ADDRESSES:
                case = f"{address}, {name}: {kind}"
                yield case, lambda k=kind, n=name, a=address: attack(k, n, a)


def requests(place: Path) -> Iterator[Case]:
    """Bytes on a socket of the pages; afterwards an honest request is answered."""
    record(place / "x", steps=1)
    with _listening(place) as (port, here):

        def asked(data: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=LONGEST) as connection:
                try:
                    connection.sendall(data.replace(b"HERE", here))
                    return connection.recv(1000)
                except ConnectionError:
                    return b""

        def attack(data: bytes) -> str:
            status = asked(data)[9:12]
            insist(not status.startswith(b"5"), repr(status))
            honest = asked(b"GET /run/x HTTP/1.1\r\nHost: HERE\r\nConnection: close\r\n\r\n")
            insist(honest[9:12] == b"200", repr(honest))
            return ANSWERED if status == b"200" else TOLD

        for data in REQUESTS:
            yield repr(data[:60]), lambda d=data: attack(d)


@contextmanager
def _listening(folder: Path) -> Iterator[tuple[int, bytes]]:
    import uvicorn

    from flatline.loopback.server import configured

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    bind = Bind(host="127.0.0.1", port=port, token=None)
    server = uvicorn.Server(configured(application(folder, bind), bind, to_ask=1.0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port, f"127.0.0.1:{port}".encode()
    server.should_exit = True
    thread.join(LONGEST)


def settings(place: Path) -> Iterator[Case]:
    """Every setting of a request to `serve`, and what is drawn with those that are taken."""
    import torch

    from flatline.rollout.sampling import sample
    from flatline.serve.request import body_of, chat_request, ids_request, text_request

    logits = torch.linspace(-30, 30, 50).reshape(1, -1)
    bases = (
        (chat_request, lambda more: {"messages": [{"role": "user", "content": "hi"}], **more}),
        (text_request, lambda more: {"prompt": "hi", **more}),
        (ids_request, lambda more: {"token_ids": [1], "sampling_params": more}),
    )

    def attack(read: Callable, body: dict) -> str:
        wanted = read(body_of(json.dumps(body).encode())).wanted
        _, logprob = sample(logits, torch.tensor([0.5]), wanted.sampling)
        insist(bool(torch.isfinite(logprob).all()), "drawn with a probability that is no number")
        return ANSWERED

    for read, base in bases:
        for name in SETTINGS:
            for value in EXTREMES:
                body = base({name: value})
                yield f"{name}={value!r:.40}", lambda r=read, b=body: attack(r, b)


def sql(place: Path) -> Iterator[Case]:
    """As the command prints it, as a table and as JSON."""
    from typer.testing import CliRunner

    from flatline.cli import app

    run = record(place / "x", steps=1)

    def attack(statement: str, *options: str) -> str:
        done = CliRunner().invoke(app, ["query", str(run), statement, *options])
        if done.exit_code == 2:
            return TOLD
        if isinstance(done.exception, TimeoutError):
            raise done.exception
        insist(done.exit_code == 0, repr(done.exception))
        if options:
            json.loads(done.stdout, parse_constant=lambda word: insist(False, word))
        return ANSWERED

    healthy_trace(steps=1).query("SELECT 1")  # loaded before the clock runs
    for statement in STATEMENTS:
        yield f"{statement[:60]!r}", lambda s=statement: attack(s)
        yield f"{statement[:60]!r} --json", lambda s=statement: attack(s, "--json")


def texts(place: Path) -> Iterator[Case]:
    """One payload in every field of a run, through commands and the page."""
    for at, payload in enumerate(PAYLOADS):
        rows = healthy_rows(steps=2, prompts=2, generations=2)
        for row in rows["rollouts"]:
            row |= dict.fromkeys(("prompt", "completion", "gold", "prompt_id", "finish"), payload)
            row["parts"] = {payload: 0.5}
        for row in rows["steps"]:
            row["metrics"] = {payload: 1.0}
        for row in rows["weights"]:
            row |= {"name": payload, "dtype": payload}
        rows["vocabulary"] = [{"id": n, "text": payload} for n in range(100)]
        run = record(place / str(at), rows=rows)
        for command in (
            ["diagnose", str(run), "--github", "--fail-on", "never"],
            ["show", str(run), "--step", "1", "--rollout", "0"],
            ["query", str(run), "SELECT * FROM rollouts"],
            ["report", str(run), "-o", str(run / "page.html")],
        ):
            yield f"{payload[:40]!r}: {command[0]}", lambda p=payload, c=command: _text(p, c)


def _text(payload: str, command: list[str]) -> str:
    asked = [sys.executable, "-c", "from flatline.cli import main; main()", *command]
    narrow = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(asked, capture_output=True, text=True, env=narrow, check=False)
    insist(done.returncode == 0, done.stderr[-300:])
    for line in (done.stdout + "\n" + done.stderr).split("\n"):
        own = re.match(r"::(error|warning|notice) (file=[^:]*,)?title=", line)
        insist(bool(own) or not line.lstrip().startswith("::"), line)
        insist(not OBEYED.search(line), line)
    if command[0] == "report" and "<" in payload:
        insist(payload not in Path(command[-1]).read_text(), "markup is in the page as markup")
    return ANSWERED


CLASSES: dict[str, Callable[[Path], Iterator[Case]]] = {
    "files of a run": run_files,
    "links as locks": locks,
    "held-out scores": held_out,
    "files of a journal": journals,
    "logs in a folder": logs,
    "files behind the pages": pages,
    "bytes on a socket of the pages": requests,
    "settings of a request to serve": settings,
    "SQL statements": sql,
    "texts in every field": texts,
}

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread that hangs must not keep this waiting
