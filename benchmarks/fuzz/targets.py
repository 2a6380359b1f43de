"""What is fuzzed: every reader of text and files that flatline did not write itself.

A target takes any bytes. It may raise the errors that are meant for a user, and nothing else; where
a reader promises more than to survive, the target checks the promise. `SEEDS` are inputs that each
reader accepts: a fuzzer that starts from nothing spends its time before the first bracket.
"""

import contextlib
import itertools
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flatline.errors import FlatlineError

if TYPE_CHECKING:  # readers are imported when they run, to be instrumented
    from flatline.tasks.base import Problem, Task

Target = Callable[[bytes], None]


_FOLDER: list[Path] = []
_FILES: dict[str, tuple[Path, int]] = {}


def _file(name: str, data: bytes) -> Path:
    """A file with these bytes, written over the last ones: opening it anew takes longer."""
    if name not in _FILES:
        _FILES[name] = _opened(name)
    path, handle = _FILES[name]
    assert os.pwrite(handle, data, 0) == len(data), "no space is left for inputs"
    os.ftruncate(handle, len(data))
    return path


def _opened(name: str) -> tuple[Path, int]:
    if not _FOLDER:
        _FOLDER.append(Path(tempfile.mkdtemp(prefix="flatline-fuzz-")))
    path = _FOLDER[0] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, os.open(path, os.O_RDWR | os.O_CREAT)


def _text(data: bytes) -> str:
    """Any string that Python can hold, lone surrogates included."""
    return data.decode("utf-8", "surrogateescape")


# -- problems ---------------------------------------------------------------------------------


def dataset_jsonl(data: bytes) -> None:
    """A dataset file through each of the three tasks."""
    path = str(_file("rows.jsonl", data))
    for task in _tasks():
        try:
            problems = task.load(path, split="train")
            for problem in problems[:2]:
                task.messages(problem)
                task.gold(problem)
        except FlatlineError:
            pass


@cache
def _tasks() -> list["Task"]:
    """Every task, once: to build one takes longer than to read a row."""
    from flatline.tasks import make_task

    return [make_task(name) for name in ("musique", "gsm8k", "toolmath")]


def dataset_spec(data: bytes) -> None:
    """A dataset spec, and the rows that its slice means."""
    from flatline.tasks.datasets import parse_specs, slice_bounds

    for spec in parse_specs(_text(data)):
        for size in (0, 7, 10**6):
            try:
                start, stop = slice_bounds(spec, size)
            except FlatlineError:
                continue
            assert 0 <= start < stop <= size


# -- what a model wrote -----------------------------------------------------------------------


def tool_calls(data: bytes) -> None:
    """The parsers of tool calls. What they accept can be written as JSON and encoded."""
    from flatline.rollout.toolcalls import MAX_CALLS, parse_hermes, parse_llama
    from flatline.tasks.base import ToolCall

    text = _text(data)
    for parse in (parse_hermes, parse_llama):
        calls = parse(text)
        assert len(calls) <= MAX_CALLS + 2
        for call in calls:
            if isinstance(call, ToolCall):
                json.dumps(dict(call.arguments), allow_nan=False, ensure_ascii=False).encode()


def answers(data: bytes) -> None:
    """The parsers of answers and citations, and the score of a final message."""
    from flatline.tasks import gsm8k, scoring, toolmath

    text = _text(data)
    scoring.parse_citations(text)
    scoring.format_fault(text)
    for tag in scoring.FORMAT_TAGS:
        scoring.tag_content(scoring.after_thought(text), tag)
    assert 0 <= scoring.token_f1(text, ["the 3rd of May"]) <= 1
    scoring.accepted_answers(text[:200])
    toolmath.read_answer(text)
    gsm8k.marked_numbers(text)
    for task, problem in _problems():
        score = task.episode(problem).score(text)
        assert 0 <= score.reward <= 1.5, score


@cache
def _problems() -> list[tuple["Task", "Problem"]]:
    """One problem of every task."""
    return [(task, task.load("lab,,train[:1]", split="train")[0]) for task in _tasks()]


def calculator(data: bytes) -> None:
    """An expression; a value that is shown can be read again and is the same."""
    from flatline.tasks.arithmetic import ExpressionError, evaluate, show

    try:
        value = evaluate(_text(data))
    except ExpressionError:
        return
    try:
        assert evaluate(show(value)) == value
    except ExpressionError as error:
        assert "digits" in str(error)  # 1/3 of 10**15 is written with more than it may hold


# -- journals, plans, settings ----------------------------------------------------------------


def front_matter(data: bytes) -> None:
    """A hypothesis file: read, change a value, read back."""
    from flatline.journal import frontmatter, markers
    from flatline.journal.entry import read_entry

    text, file = _text(data), Path("h03.md")
    with contextlib.suppress(FlatlineError):
        markers.filled(text, "status", "new")
    read_entry(text, file)
    changed = frontmatter.changed(text, {"status": "testing", "experiments": ["one"]}, file)
    assert frontmatter.read(changed, file)["status"] == "testing"


def plan(data: bytes) -> None:
    """A plan file whose digest fits whatever it says, and a result beside it."""
    from flatline.experiment import load_plan
    from flatline.experiment.plan import digest_of
    from flatline.experiment.result import read_looks

    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict):
        values["version"] = 1
        with contextlib.suppress(ValueError, RecursionError):
            data = json.dumps({**values, "digest": digest_of(values)}).encode()
    path = _file("plan.json", data)
    found = load_plan(path.parent)
    _file("result.json", data)
    read_looks(path.parent, found)


def settings(data: bytes) -> None:
    """A TOML file of settings; what is read can be written and read again."""
    from flatline.config import load_config, toml_of

    config = load_config(_file("run.toml", data))
    again = load_config(_file("again.toml", toml_of(config.to_dict()).encode("utf-8", "replace")))
    assert again == config or "\ufffd" in str(again) or "?" in str(again)


# -- traces and logs --------------------------------------------------------------------------


def trace(data: bytes) -> None:
    """A stream with checksums that fit or without, its checksums, or `run.json`; then columns."""
    from flatline.trace import Trace

    kind, body = data[:1], data[1:]
    run = body if kind == b"r" else b'{"schema": 1}'
    stream = body if kind in b"cn" else _stream()
    sums = _sums(stream) if kind == b"c" else body if kind == b"s" else None
    folder = "bare" if sums is None else "summed"
    _file(f"{folder}/steps.r0.0.arrow", stream)
    if sums is not None:
        _file(f"{folder}/steps.r0.0.crc", sums)
    found = Trace.open(_file(f"{folder}/run.json", run).parent)
    for column in ("step", "reward"):
        if column in found.steps:
            found.steps[column]
    found.metric_names  # noqa: B018 - the property reads the column


def _sums(stream: bytes) -> bytes:
    """Checksums over messages as they would lie, were the stream one of ours."""
    cuts = [0, *_stream_cuts(), len(stream)]
    ends = sorted({cut for cut in cuts if cut <= len(stream)})
    pairs = itertools.pairwise(ends)
    lines = (f"{a} {b} {zlib.crc32(stream[a:b]):08x}\n" for a, b in pairs)
    return "".join(lines).encode()


def _stream() -> bytes:
    _stream_cuts()
    return _STREAM[0]


_STREAM: list[bytes] = []
_CUTS: list[int] = []


def _stream_cuts() -> list[int]:
    """A stream of two batches, once, and where its messages end."""
    if not _STREAM:
        import pyarrow as pa

        from flatline.trace.files import versioned
        from flatline.trace.rows import to_batch
        from flatline.trace.schema import STEPS

        rows = [{"step": step, "reward": 0.5, "metrics": {"kl": 0.1}} for step in (1, 2)]
        messages = [versioned(STEPS).serialize()]
        messages += [to_batch("steps", [row]).serialize() for row in rows]
        _CUTS.extend(sum(len(m) for m in messages[: n + 1]) for n in range(len(messages)))
        _STREAM.append(b"".join(pa.py_buffer(m).to_pybytes() for m in messages))
    return _CUTS


def parquet(data: bytes) -> None:
    """A parquet file of `steps`."""
    from flatline.trace import Trace

    folder = _file("parquet/steps.r0.0.parquet", data).parent
    if "parquet/run.json" not in _FILES:
        _file("parquet/run.json", b'{"schema": 1}')
    found = Trace.open(folder)
    if "reward" in found.steps:
        found.steps["reward"]


def _log(name: str, data: bytes) -> None:
    from flatline.trace.importers import open_log

    found = open_log(_file(name, data))
    if "reward" in found.steps:
        found.steps["reward"]


def log_json(data: bytes) -> None:
    """`trainer_state.json`."""
    _log("trainer_state.json", data)


def log_jsonl(data: bytes) -> None:
    """A metrics log, or rollouts of verl and verifiers."""
    _log("metrics.jsonl", data)


def log_packed(data: bytes) -> None:
    """Rows packed by zstd: as they are, or packed here."""
    import pyarrow as pa

    if data[:1] == b"f":
        data = pa.compress(data[1:], codec="zstd", asbytes=True)
    _log("rollouts.jsonl.zst", data)


def log_mlflow(data: bytes) -> None:
    """The database of MLflow."""
    _log("mlflow.db", data)


def log_csv(data: bytes) -> None:
    """An exported history."""
    _log("history.csv", data)


def log_wandb(data: bytes) -> None:
    """A `.wandb` file: as it is, or one record whose checksum fits."""
    if data[:1] == b"f":
        record = data[1:30_000]
        check = zlib.crc32(record, zlib.crc32(b"\x01"))
        data = b":W&B\xc4\x1e\x00" + struct.pack("<IHB", check, len(record), 1) + record
    _log("run-1.wandb", data)


def log_tensorboard(data: bytes) -> None:
    """An event file: as it is, or one record whose checksums fit."""
    from flatline.trace.importers import tensorboard

    if not hasattr(tensorboard._masked_crc, "cache_info"):
        # The reader sums the same bytes again, one by one.
        tensorboard._masked_crc = lru_cache(4)(tensorboard._masked_crc)
    if data[:1] == b"f":
        record = data[1:]
        length = struct.pack("<Q", len(record))
        head = length + struct.pack("<I", tensorboard._masked_crc(length))
        data = head + record + struct.pack("<I", tensorboard._masked_crc(record))
    _log("events.out.tfevents.1", data)


def _seed_problems() -> list[bytes]:
    from flatline.tasks import stories, toolmath, world

    rows = [world.rows("train", 0, 1)[0], stories.rows("train", 0, 1)[0]]
    rows.append(toolmath.rows("train", 0, 1)[0])
    return [json.dumps(row).encode() for row in rows]


def _seed_plan() -> list[bytes]:
    from dataclasses import replace

    from flatline.config import RunConfig
    from flatline.experiment import Arm, Plan, Role

    base = RunConfig()
    arms = (
        Arm(name="a", role=Role.CONTROL, config=base),
        Arm(name="b", role=Role.TREATED, config=replace(base, kl_beta=0.1)),
    )
    made = Plan(
        name="p", hypothesis="H03", question="?", factor="kl_beta", mechanism=".", arms=arms
    )
    return [json.dumps(replace(made, registered="now").to_json()).encode()]


def _seed_parquet() -> list[bytes]:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    from flatline.trace.files import versioned
    from flatline.trace.rows import to_batch
    from flatline.trace.schema import STEPS

    batch = to_batch("steps", [{"step": 1, "reward": 0.5, "metrics": {"kl": 0.1}}])
    table = pa.Table.from_batches([batch]).cast(versioned(STEPS))
    found = []
    for sums in (True, False):  # without sums, damage reaches what unpacks and decodes
        kept = io.BytesIO()
        pq.write_table(table, kept, write_page_checksum=sums)
        found.append(kept.getvalue())
    return found


_STATE = (
    b'{"global_step": 2, "logging_steps": 1, "log_history": [{"step": 1, "reward": 0.1, "kl": 0.0},'
    b' {"step": 2, "rewards/a/mean": "0.2", "reward": NaN}]}'
)
_ROLLOUTS = (
    b'{"input": "q", "output": "a", "gts": "72", "score": 1.0, "step": 3, "acc": true}\n'
    b'{"input": "q", "output": "b", "gts": "72", "score": 0.0, "step": 3, "acc": false}\n'
)
_RESULTS = (
    b'{"example_id": 0, "prompt": [{"role": "user", "content": "?"}], "completion": '
    b'[{"role": "assistant", "content": "x", "tool_calls": [1]}], "answer": "72", "reward": 1.0, '
    b'"metrics": {"em": 1.0}, "is_truncated": false, "token_usage": {"output_tokens": 64.0}}\n'
)
_ENTRY = (
    b"---\ncode: H03\ntitle: KL\npriority: high\nstatus: pending\nconfidence: null\norder: 1\n"
    b"related: [H01]\nexplains: []\nexperiments:\n  - zero  # first\ncost_minutes: 3\nnote: ''\n---"
    b"\n\n<!-- flatline:status -->\nx\n<!-- /flatline:status -->\n"
)


def _field(number: int, content: bytes) -> bytes:
    """A protobuf field of bytes."""
    return (
        bytes([number << 3 & 0x7F | 2 | (0x80 if number > 15 else 0)])
        + (bytes([number >> 4]) if number > 15 else b"")
        + bytes([len(content)])
        + content
    )


def _seed_dumps() -> list[bytes]:
    """A row of every kind of dump, all of its names filled with a number, a text or a list."""
    from flatline.trace.importers.rollouts import KINDS

    filled = {"token_ids": [1, 2], "loss_mask": [0, 1], "nodes": [{"message": {"role": "user"}}]}
    return [
        json.dumps({name: filled.get(name, 1) for name in sorted(kind.known)}).encode()
        for kind in KINDS.values()
    ]


def _seed_database() -> list[bytes]:
    import sqlite3

    path = _file("seed.db", b"")
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE runs (run_uuid, name, start_time)")
        store.execute("CREATE TABLE params (run_uuid, key, value)")
        store.execute("CREATE TABLE metrics (run_uuid, key, value, step, timestamp, is_nan)")
        store.execute("INSERT INTO runs VALUES ('a', 'one', 1)")
        store.execute("INSERT INTO metrics VALUES ('a', 'reward', 0.5, 1, 1, 0)")
    store.close()
    return [path.read_bytes()]


def _seed_event() -> bytes:
    """Wall time, step 3, and a scalar `reward` of 0.5."""
    scalar = _field(1, b"reward") + b"\x15" + struct.pack("<f", 0.5)
    return b"\x09" + struct.pack("<d", 1.0) + b"\x10\x03" + _field(5, _field(1, scalar))


def _seed_history() -> bytes:
    """One call of `wandb.log`."""
    items = [(b"reward", b"0.5"), (b"_step", b"1")]
    told = b"".join(_field(1, _field(1, key) + _field(16, value)) for key, value in items)
    return _field(2, told)


TARGETS: dict[str, Target] = {
    "dataset-jsonl": dataset_jsonl,
    "dataset-spec": dataset_spec,
    "tool-calls": tool_calls,
    "answers": answers,
    "calculator": calculator,
    "front-matter": front_matter,
    "plan": plan,
    "settings": settings,
    "trace": trace,
    "parquet": parquet,
    "log-json": log_json,
    "log-jsonl": log_jsonl,
    "log-packed": log_packed,
    "log-mlflow": log_mlflow,
    "log-csv": log_csv,
    "log-wandb": log_wandb,
    "log-tensorboard": log_tensorboard,
}
"""Every reader by its name on the command line."""

SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "dataset-jsonl": _seed_problems,
    "dataset-spec": lambda: [b"data/musique,full,dev[:100]", b"lab,,train[10%:-20%];a.jsonl"],
    "tool-calls": lambda: [
        b'<think>x</think><tool_call>{"name": "f", "arguments": {"a": [1, null]}}</tool_call>',
        b'<|python_tag|>{"name": "f", "parameters": {"a": 1.5e3}}',
    ],
    "answers": lambda: [
        "<think>a</think><cite>[1], #2;3</cite><answer>“twenty one” 3rd</answer>".encode(),
        b"so\n#### 1,080.50",
        b"<answer>-7</answer>",
    ],
    "calculator": lambda: [b"(3 + 4) * 5 / -.5", "2 × 3 − 1".encode()],
    "front-matter": lambda: [_ENTRY],
    "plan": _seed_plan,
    "settings": lambda: [b'task = "gsm8k"\nseed = 1\nlearning_rate = 1e-3\npeft = false\n'],
    "trace": lambda: [
        b"c" + _stream(),
        b"n" + _stream(),
        b"s" + _sums(_stream()),
        b'r{"schema": 1, "settings": {}}',
    ],
    "parquet": _seed_parquet,
    "log-json": lambda: [_STATE, b'{"steps": [{"step": 1, "loss": 1}]}', b'[{"reward": 1}]'],
    "log-jsonl": lambda: [
        b'{"step": 1, "data": {"reward": 1}}\n',
        _ROLLOUTS,
        _RESULTS,
        *_seed_dumps(),
    ],
    "log-packed": lambda: [b"f" + _ROLLOUTS],
    "log-mlflow": _seed_database,
    "log-csv": lambda: [b"step,reward\n1,0.5\n2,\n", b'Step;"r - reward";r - reward__MIN\n1;2;3\n'],
    "log-wandb": lambda: [b"f" + _seed_history(), b":W&B\xc4\x1e\x00"],
    "log-tensorboard": lambda: [b"f" + _seed_event()],
}
"""Inputs that each reader accepts."""

WORDS: dict[str, tuple[str, ...]] = {
    "tool-calls": ("<tool_call>", "</tool_call>", "<think>", "</think>", '"name"', '"arguments"'),
    "answers": ("<answer>", "</answer>", "<cite>", "</cite>", "<think>", "</think>", "####"),
    "front-matter": ("---\n", "<!-- flatline:status -->\n", "!!python/object", "experiments:\n"),
    "settings": ("task = ", "[[", '"""', "1979-05-27"),
    "log-json": ('"log_history"', '"step"', '"reward"', "NaN", "1e999"),
    "log-jsonl": ('"input"', '"output"', '"score"', '"prompt"', '"completion"', '"reward"'),
    "dataset-jsonl": ('"paragraphs"', '"question_decomposition"', '"steps"', '"answer"'),
}
"""Words that mean something to a reader."""


def survive(name: str, data: bytes) -> None:
    """Run a target; what is meant for a user is no crash."""
    try:
        TARGETS[name](data)
    except FlatlineError as error:
        str(error).encode("utf-8", "backslashreplace")


def clean_up() -> None:
    """Remove the scratch folder."""
    for _, handle in _FILES.values():
        os.close(handle)
    _FILES.clear()
    for folder in _FOLDER:
        for root, _, files in os.walk(folder, topdown=False):
            for file in files:
                os.unlink(os.path.join(root, file))
            os.rmdir(root)
    _FOLDER.clear()
