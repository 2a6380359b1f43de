"""Damaged logs and files that are none: what is whole is read, the rest told, no traceback."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.errors import TraceError
from flatline.trace.importers import open_log
from tests.log_files import jsonl, refusal, written

FIXTURES = Path(__file__).parent / "fixtures"
WANDB = FIXTURES / "offline.wandb"
EVENTS = FIXTURES / "events.out.tfevents.1794724552.host.0"


def test_unusable_rows_are_counted_and_the_first_three_are_named(tmp_path):
    bad = ["{broken", "[1]", '{"step": -1, "reward": 1}', '{"step": 1.5, "reward": 1}']
    trace = open_log(jsonl(tmp_path, {"step": 1, "reward": 1}, *bad, {"reward": 2}))
    assert trace.steps["reward"].tolist() == [1]
    assert trace.run["unusable"] == 5
    told = "\n".join(trace.warnings)
    for one in ("line 2: not JSON", "b'{broken'", "line 3: not an object: [1]",
                "line 4: `step` is no step: -1", "2 more"):  # fmt: skip
        assert one in told


def test_a_last_line_that_is_still_being_written_is_no_damage(tmp_path):
    rows = b'{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.5}\n{"step": 3, "rew'
    trace = open_log(written(tmp_path, "log.jsonl", rows))
    assert len(trace.steps) == 2
    assert trace.warnings == []
    assert any("in the middle of a row, on line 3" in told for told in trace.caveats)


def test_one_line_with_bytes_that_are_no_text_costs_only_that_line(tmp_path):
    content = b'{"step": 1, "reward": 1}\n{"step": 2, "re\xffward": 1}\n{"step": 3, "reward": 1}\n'
    trace = open_log(written(tmp_path, "log.jsonl", content))
    assert trace.steps["step"].tolist() == [1, 3]
    assert "line 2: not JSON (not UTF-8 text at byte 15" in trace.warnings[0]


def test_a_reward_that_is_no_number_is_told_and_no_terminal_obeys_it(tmp_path):
    path = jsonl(tmp_path, '{"step": 1, "reward": "\\u001b[2J"}', '{"step": 2, "reward": 1}')
    trace = open_log(path)
    assert trace.steps["reward"].tolist() == [1]
    assert "line 1: `reward` is not a number: " in trace.warnings[0]
    assert "\x1b" not in trace.warnings[0]


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "log.jsonl")
    assert "is a pipe or a device" in refusal(tmp_path / "log.jsonl")


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("log.jsonl", b"", "is empty"),
    ("log.json", b"  \n", "is empty"),
    ("log.csv", b"step,reward\n", "holds no rows"),
    ("log.csv", b"1,0.5\n2,0.25\n", "Add a first line"),
    ("log.json", b'{"a log": [{"sees": "x", "must": true}]}', "no row with a step and a number"),
    ("log.jsonl", b"\xef\xbb\xbf", "holds no rows"),
    ("log.json", b"[]", "holds no rows"),
    ("log.json", b"{}", "no list of rows"),
    ("log.json", b"3", "no list of rows"),
    ("log.json", b'{"log_history": [', "line 1 is not JSON"),
    ("log.jsonl", b"nonsense\n", "line 1: not JSON"),
    ("log.jsonl", b'{"step": 1, "name": "x"}\n', "no row with a step and a number"),
    ("log.json", b"[" * 100_000, "not JSON that can be read"),
    ("log.jsonl", b"\x1f\x8b\x08\x00binary", "zero byte"),
    ("log.bin", b"\x89PNG\r\n\x1a\n\xff\xfe", "not UTF-8"),
    ("log.txt", b"hello\n", "which no log does"),
    ("run.wandb", b"junk", "no W&B run file"),
    ("run.wandb", b":W&B\xe1\xbe\x00" + b"junk" * 9, "holds no rows"),
    ("events.out.tfevents.1", b"junk" * 9, "damaged length"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, name, content, expected):
    message = refusal(written(tmp_path, name, content))
    assert expected in message
    assert str(tmp_path / name) in message


def test_a_line_that_is_far_too_long_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("flatline.trace.importers.text.MAX_LINE", 1000)
    path = jsonl(tmp_path, {"step": 1, "reward": 1}, {"step": 2, "text": "x" * 2000})
    assert "line 2 is longer than" in refusal(path)


def test_a_path_that_is_not_there_and_a_folder_without_a_log_are_refused(tmp_path):
    assert "no file or folder" in refusal(tmp_path / "missing.jsonl")
    written(tmp_path, "readme.txt", "hello")
    assert "seen: readme.txt" in refusal(tmp_path)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.binary(max_size=300),
    start=st.sampled_from([b"", b":W&B\xe1\xbe\x00", b'{"step": 1, "reward": ', b"step,reward\n"]),
    name=st.sampled_from(["a.json", "a.jsonl", "a.csv", "a.wandb", "tfevents.1", "a"]),
)
def test_no_bytes_make_it_fail_with_anything_but_a_trace_error(tmp_path, data, start, name):
    path = written(tmp_path, name, start + data)
    try:
        open_log(path)
    except TraceError as error:
        assert str(path) in str(error)


@settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    source=st.sampled_from([WANDB, EVENTS]),
    at=st.floats(0, 1, exclude_max=True),
    patch=st.binary(min_size=1, max_size=12),
)
def test_damage_anywhere_in_a_binary_file_never_changes_a_value(tmp_path, source, at, patch):
    data = bytearray(source.read_bytes())
    start = int(at * len(data))
    data[start : start + len(patch)] = patch
    path = written(tmp_path, source.name, bytes(data))
    whole = dict(
        zip(*(open_log(source).steps[c].tolist() for c in ("step", "reward")), strict=True)
    )
    try:
        trace = open_log(path)
        found = dict(zip(trace.steps["step"], trace.steps["reward"], strict=True))
    except TraceError:
        return
    assert all(whole[step] == value or math.isnan(value) for step, value in found.items())


ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["step", "reward", "kl", "data", "input", "output", "score", "prompt"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=3,
        ),
    ),
    max_size=6,
)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS)
def test_no_rows_make_it_fail_with_anything_but_a_trace_error(tmp_path, rows):
    path = written(tmp_path, "log.json", json.dumps(rows))
    try:
        trace = open_log(path)
    except TraceError:
        return
    assert len(trace.steps) or len(trace.rollouts)
    steps = trace.steps["step"].tolist() if len(trace.steps) else []
    assert steps == sorted(set(steps))
