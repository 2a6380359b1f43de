"""Files that are damaged on purpose: absurd sizes, wrong types, nesting without end, pickles.

Most of these were found by `python benchmarks/fuzz/run.py` or by reading with its question in mind.
"""

import ast
import io
import json
import re
import sqlite3
import struct
import time
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flatline
from flatline.config import RunConfig, load_config
from flatline.errors import ConfigError, DataError, TraceError
from flatline.experiment import load_plan
from flatline.experiment.plan import digest_of
from flatline.files import LARGEST, json_in, toml_in
from flatline.journal import Journal, begin, frontmatter
from flatline.tasks import datasets, make_task
from flatline.trace import Trace
from flatline.trace.files import versioned
from flatline.trace.importers import open_log
from flatline.trace.rows import to_batch
from flatline.trace.schema import STEPS, TABLES
from flatline.trace.trusted import batch_in

ROWS = [{"step": step, "reward": 0.5, "metrics": {"kl": 0.1}} for step in range(1, 4)]


def run_of(folder: Path, name: str, data: bytes, *, sums: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text('{"schema": 1}')
    (folder / name).write_bytes(data)
    if sums:
        line = f"0 {len(data)} {zlib.crc32(data):08x}\n"
        (folder / name).with_suffix(".crc").write_text(line)
    return folder


def stream_of(schema: pa.Schema, *batches: pa.RecordBatch, **options) -> bytes:
    kept = io.BytesIO()
    with pa.ipc.new_stream(kept, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return kept.getvalue()


def parquet_of(table: pa.Table, **options) -> bytes:
    kept = io.BytesIO()
    pq.write_table(table, kept, **options)
    return kept.getvalue()


# -- Arrow ------------------------------------------------------------------------------------


def test_a_stream_that_names_another_type_is_not_read_as_ours(tmp_path):
    schema = versioned(pa.schema([("step", pa.string()), ("reward", pa.float64())]))
    batch = pa.record_batch([["one"], [1.0]], schema=schema)
    trace = Trace.open(run_of(tmp_path / "r", "steps.r0.0.arrow", stream_of(schema, batch)))
    assert len(trace.steps) == 0
    assert "`step` is string, not int32" in " ".join(trace.warnings)


def test_a_stream_without_a_stored_column_cannot_claim_any_number_of_rows(tmp_path):
    schema = versioned(pa.schema([]))
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    data = stream_of(schema, batch.replace_schema_metadata(schema.metadata))
    trace = Trace.open(run_of(tmp_path / "r", "steps.r0.0.arrow", data))
    assert len(trace.steps) == 0 and "has no column `step`" in " ".join(trace.warnings)


def test_a_compressed_batch_is_refused_before_it_is_unpacked(tmp_path):
    batch = to_batch("steps", [{"step": 1, "reward": 0.0}] * 200_000)
    schema = versioned(STEPS)
    data = stream_of(
        schema, pa.RecordBatch.from_arrays(batch.columns, schema=schema), compression="zstd"
    )
    assert len(data) < batch.nbytes / 50
    trace = Trace.open(run_of(tmp_path / "r", "steps.r0.0.arrow", data))
    before = pa.total_allocated_bytes()
    assert len(trace.steps) == 0 and "is compressed" in " ".join(trace.warnings)
    assert pa.total_allocated_bytes() - before < 10 * 2**20


def test_offsets_that_point_outside_are_noticed():
    batch = to_batch("steps", ROWS)
    message = batch.serialize().to_pybytes()
    offsets = np.array([0, 1, 2, 3], dtype=np.int32).tobytes()
    at = message.rindex(offsets)
    wild = np.array([0, 1, 2**30, 2**30 + 1], dtype=np.int32).tobytes()
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        batch_in(pa.py_buffer(message[:at] + wild + message[at + len(wild) :]), STEPS)


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize(
    "data", [b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4]
)
def test_a_stream_that_ends_at_once_is_a_warning(tmp_path, data, sums):
    trace = Trace.open(run_of(tmp_path / "r", "steps.r0.0.arrow", data, sums=sums))
    assert len(trace.steps) == 0


def test_checksums_that_point_outside_the_stream_are_a_warning(tmp_path):
    folder = run_of(tmp_path / "r", "steps.r0.0.arrow", b"x" * 64, sums=True)
    lines = ["0 9 00000000", f"{10**17} 3 00000000", f"5 {10**17} 00000000", "9 3 00000000"]
    (folder / "steps.r0.0.crc").write_text("".join(f"{line}\n" for line in lines))
    assert len(Trace.open(folder).steps) == 0


def test_a_parquet_file_that_claims_more_rows_than_it_can_hold_is_refused(tmp_path):
    rows = 2**25
    table = pa.table(
        {
            "step": pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(rows, np.int8)), pa.array([1], pa.int32())
            )
        }
    )
    data = parquet_of(table.cast(versioned(pa.schema([("step", pa.int32())]))))
    assert len(data) < rows / 64
    trace = Trace.open(run_of(tmp_path / "r", "steps.r0.0.parquet", data))
    assert len(trace.steps) == 0 and "33,554,432 rows" in " ".join(trace.warnings)


def test_a_parquet_file_with_other_types_is_refused(tmp_path):
    table = pa.table({"step": ["one"]}).replace_schema_metadata({b"flatline_schema": b"1"})
    trace = Trace.open(run_of(tmp_path / "r", "steps.r0.0.parquet", parquet_of(table)))
    assert len(trace.steps) == 0 and "not int32" in " ".join(trace.warnings)


@pytest.mark.parametrize("table", TABLES)
def test_what_flatline_writes_itself_passes_its_own_checks(table):
    first = TABLES[table].names[0]
    batch = to_batch(table, [{first: 1}, {first: 2}])
    assert batch_in(batch.serialize(), TABLES[table]).num_rows == 2


# -- JSON, TOML, YAML -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5_000, "", "\x00"])
def test_any_json_is_a_value_or_a_value_error(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError):
        json_in(tmp_path / "x.json")


def test_a_json_file_of_absurd_size_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(LARGEST + 1)  # takes no room on the disk
    with pytest.raises(ValueError, match="64 are read"):
        json_in(tmp_path / "x.json")


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "seed = " + "9" * 5_000, "x = \x00"])
def test_settings_that_break_the_reader_of_toml_are_refused(tmp_path, text):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ValueError):
        toml_in(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "run.toml")
    begin(tmp_path / "journal", RunConfig())
    (tmp_path / "journal" / "setup.toml").write_text(text)
    with pytest.raises(ConfigError, match="not valid TOML"):
        Journal.open(tmp_path / "journal").setup()


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf")])
def test_a_number_that_no_float_can_hold_is_refused(value):
    with pytest.raises(ConfigError, match="cannot be used"):
        RunConfig(learning_rate=value)


@pytest.mark.parametrize("change", [
    {"arms": 3}, {"arms": [{}]}, {"looks": None}, {"negative_seeds": "x"}, {"name": 5},
    {"smallest_effect": "much"}, {"alpha": 10**400}, {"strange": 1}, {"arms": None},
])  # fmt: skip
def test_a_plan_of_another_shape_is_refused_although_its_digest_fits(tmp_path, change):
    from flatline.experiment import register
    from tests.experiments import config_plan

    register(config_plan(), tmp_path)
    values = json.loads((tmp_path / "plan.json").read_text()) | change
    values["digest"] = digest_of(values)
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError):
        load_plan(tmp_path)


def test_a_front_matter_of_absurd_length_is_refused_at_once():
    text = "---\n" + "".join(f"k{n}: v\n" for n in range(200_000)) + "---\n"
    began = time.process_time()
    with pytest.raises(ConfigError, match="the limit is 64,000"):
        frontmatter.read(text, Path("h03.md"))
    assert time.process_time() - began < 1


# -- logs and datasets ------------------------------------------------------------------------


def test_a_record_of_w_and_b_in_a_hundred_thousand_empty_pieces_takes_no_time(tmp_path):
    """Every piece used to be counted again for every further one."""
    pieces = [_piece(2, b"")] + [_piece(3, b"")] * 100_000
    data = bytearray(b":W&B\xc4\x1e\x00")
    for piece in pieces:
        room = 32768 - len(data) % 32768
        data += b"\0" * room if room < 7 else b""
        data += piece
    (tmp_path / "run-1.wandb").write_bytes(bytes(data))
    began = time.process_time()
    with pytest.raises(TraceError):
        open_log(tmp_path / "run-1.wandb")
    assert time.process_time() - began < 5


def _piece(kind: int, content: bytes) -> bytes:
    check = zlib.crc32(content, zlib.crc32(bytes([kind])))
    return struct.pack("<IHB", check, len(content), kind) + content


def test_a_log_that_goes_back_at_every_row_takes_no_time(tmp_path):
    """Every step used to be looked at whenever a log went back."""
    steps = [*range(20_000), *(19_999 - n % 2 for n in range(20_000))]
    rows = (f"{step},{n}\n" for n, step in enumerate(steps))
    (tmp_path / "log.csv").write_text("step,reward\n" + "".join(rows))
    began = time.process_time()
    assert len(open_log(tmp_path / "log.csv").steps) == 19_999
    assert time.process_time() - began < 10


def test_a_damaged_database_whose_damage_is_no_text_is_refused(tmp_path):
    """SQLite quotes the damaged statement in its error, and Python cannot decode that."""
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE runs (run_uuid, name, start_time)")
    store.close()
    path.write_bytes(path.read_bytes().replace(b"runs (run", b"runs \xe0run"))
    with pytest.raises(TraceError):
        open_log(path)


@pytest.mark.parametrize("text", ["{\n", "[1,\n\n", '{"a":\x0b\u2028\n', "{\n\n\n"])
def test_a_json_log_that_ends_early_is_said_to(tmp_path, text):
    """The line it ends on has no text of its own, and other characters end lines for Python."""
    (tmp_path / "trainer_state.json").write_text(text)
    with pytest.raises(TraceError, match="is not JSON"):
        open_log(tmp_path / "trainer_state.json")


def test_a_packed_log_that_unpacks_without_end_is_refused(tmp_path):
    packed = pa.compress(b"{}\n" * 2**20, codec="zstd", asbytes=True)
    assert len(packed) < 2**12
    (tmp_path / "log.jsonl.zst").write_bytes(packed)
    with pytest.raises(TraceError, match="100 times its size"):
        open_log(tmp_path / "log.jsonl.zst")


def test_a_dataset_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_LONGEST", 1000)
    (tmp_path / "x.jsonl").write_text('{"question": "' + "x" * 2000)
    with pytest.raises(DataError, match=r"x\.jsonl:1 is longer than 1,000 characters"):
        make_task("gsm8k").load(str(tmp_path / "x.jsonl"), split="train")


# -- pickles ----------------------------------------------------------------------------------

UNPICKLES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
EVALUATES = {"eval", "exec", "compile", "torch.load", "np.load", "numpy.load", "os.system"}
RUNS_YOUR_SCRIPT = {("bench/mutants/script.py", "exec"), ("bench/mutants/planting.py", "compile")}
"""`flatline bench mutants run SCRIPT` is there to run the script that you name, as Python would."""


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """All calls and imports of flatline's own code, by the path of its file."""
    root = Path(flatline.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    kinds = ast.Call | ast.Import | ast.ImportFrom
    return [
        (file, node)
        for file, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]


def test_nothing_in_flatline_can_unpickle_or_evaluate_but_the_script_that_you_name():
    found = []
    for file, node in nodes():
        if isinstance(node, ast.Call):
            used = called(node) & EVALUATES
        else:
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            used = {name.split(".")[0] for name in names} & UNPICKLES
        found += [(file, name) for name in used]
    assert sorted(found) == sorted(RUNS_YOUR_SCRIPT)


def called(node: ast.Call) -> set[str]:
    """Its name; none where numpy is told to refuse pickles."""
    name, told = dotted(node.func), map(ast.unparse, node.keywords)
    return set() if name == "np.load" and "allow_pickle=False" in told else {name}


def dotted(node: ast.expr) -> str:
    """`a.b.c`; a name behind anything but names is `.c`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_every_yaml_is_read_with_a_loader_that_builds_no_objects():
    every = [node for _, node in nodes() if isinstance(node, ast.Call)]
    calls = [ast.unparse(node) for node in every if dotted(node.func).startswith("yaml.")]
    safe = re.compile(r"Loader=(yaml\.SafeLoader|loader)\b|^yaml\.safe_")
    assert calls and all(safe.search(call) for call in calls), calls
