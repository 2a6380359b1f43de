"""SQL over a trace, and the commands that look into one."""

import json
import math
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.errors import TraceError
from flatline.trace import Recorder, Trace
from tests.traces import PIECE, SETTINGS, healthy_rows, healthy_trace, trace_of

HOSTILE = "\x1b[31mred [bold]x[/bold] \u202e"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rows = healthy_rows(steps=2, prompts=2, generations=2)
    rows["rollouts"][1]["completion"] = HOSTILE
    rows["tokens"][1]["trained"][7] = 1  # a tool's token with a loss
    rows["tokens"][1]["attended"][8] = 0
    rows["tokens"][1]["trainer"] = rows["tokens"][1]["trainer"].copy()
    rows["tokens"][1]["trainer"][2] -= 0.5
    with Recorder(folder, settings=SETTINGS) as recorder:
        recorder.log_vocabulary({i: HOSTILE if i % 2 else f" w{i}" for i in range(100)})
        recorder.log_rollouts(rows["rollouts"])
        recorder.log_tokens(rows["tokens"][:4])  # only of step 1
        for row in rows["steps"]:
            recorder.log_step(**row)
    return folder


def flatline(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_without_duckdb_sql_is_refused_with_what_to_type(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "flatline.trace.query", raising=False)
    monkeypatch.setitem(sys.modules, "duckdb", None)  # makes `import duckdb` an ImportError
    with pytest.raises(TraceError, match=r"needs duckdb.*\n.*pip install .*\[query\]"):
        Trace.open(run).query("SELECT 1")
    result = flatline("query", run, "SELECT 1")
    assert result.exit_code == 2 and "needs duckdb" in result.stderr
    assert "Traceback" not in result.stderr


def test_views_have_the_columns_of_the_tables():
    trace = healthy_trace(steps=3)
    found = trace.query("SELECT step, avg(reward) AS r FROM rollouts GROUP BY step ORDER BY step")
    expected = [trace.rollouts["reward"][trace.rollouts["step"] == s].mean() for s in (1, 2, 3)]
    np.testing.assert_allclose(found["r"].to_numpy(), expected)
    assert trace.query("SELECT metrics['reward'] m FROM steps WHERE step = 1")["m"][0].is_valid
    assert trace.query("SELECT count(DISTINCT name) n FROM weights").to_pylist() == [{"n": 2}]


def test_the_view_of_tokens_has_one_row_per_token():
    trace = healthy_trace(steps=2)
    found = trace.query(
        "SELECT count(*) n, max(position) last, sum(trained) t, max(abs(sampler - trainer)) "
        "FILTER (author = 1) gap FROM tokens WHERE step = 2"
    ).to_pylist()[0]
    assert found["n"] == 64 * len(PIECE)
    assert found["last"] == len(PIECE) - 1
    assert int(found["t"]) == trace.tokens([2]).trained.sum()
    assert found["gap"] < 1e-4


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM outside",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM 'https://example.com/x.parquet'",
        "COPY rollouts TO '/tmp/flatline-must-not-exist.csv'",
        "ATTACH '/tmp/flatline-must-not-exist.db'",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET python_enable_replacements = true",
        "DELETE FROM rollouts",
    ],
)
def test_sql_reaches_nothing_but_the_trace(sql):
    with pytest.raises(TraceError):
        trace_of([[1.0]]).query(sql)


def test_nothing_that_sql_changes_outlives_the_question():
    trace = trace_of([[1.0, 2.0]])
    trace.query("DROP VIEW rollouts; SELECT 1")
    assert trace.query("SELECT * FROM rollouts").num_rows == 2


def test_query_prints_a_table_or_json(run):
    sql = "SELECT step, avg(reward) AS mean FROM rollouts GROUP BY step ORDER BY step"
    shown = flatline("query", run, sql)
    assert shown.exit_code == 0
    assert "mean" in shown.stdout
    rows = json.loads(flatline("query", run, sql, "--json").stdout)
    assert [row["step"] for row in rows] == [1, 2]


def test_query_prints_text_of_a_model_as_visible_text(run):
    shown = flatline("query", run, "SELECT completion FROM rollouts WHERE rollout = 1 AND step = 1")
    assert "\\x1b[31mred [bold]x[/bold] \\u202e" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_a_log_is_shown_and_asked_as_it_is_diagnosed(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "reward": 0.25}\n{"step": 2, "reward": 0.5}\n')
    shown = flatline("show", log)
    assert shown.exit_code == 0
    assert "a log: jsonl" in shown.stdout and "reward 0.250 first, 0.500 last" in shown.stdout
    assert "started" not in shown.stdout
    found = flatline("query", log, "SELECT max(reward) AS r FROM steps", "--json")
    assert json.loads(found.stdout) == [{"r": 0.5}]


def test_show_rollout_marks_authors_and_masks_without_any_colour(run):
    shown = flatline("show", run, "--step", 1, "--rollout", 1).stdout
    lines = [line.split() for line in shown.splitlines()]
    assert any(words[:2] == ["tool", "loss"] for words in lines)
    assert any(words[:2] == ["tool", "hidden"] for words in lines)
    assert any(words[:2] == ["model", "loss"] for words in lines)
    assert "\x1b" not in shown


def test_show_falls_back_on_text_where_a_step_has_no_token_detail(run):
    shown = flatline("show", run, "--step", 2, "--rollout", 0).stdout
    assert "Steps that have it: 1" in shown
    assert "<answer>" in shown
    assert flatline("show", run, "--step", 2, "--rollout", 0, "--logprobs").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", 99], "from 1 to 2"),
        (["--step", 1, "--rollout", 99], "numbered 0 to 3"),
        (["--rollout", 1], "--step 1 --rollout 1"),
        (["--step", 1, "--logprobs"], "--rollout 0 --logprobs"),
    ],
)
def test_show_says_what_to_type_instead(run, arguments, said):
    shown = flatline("show", run, *arguments)
    assert shown.exit_code == 2
    assert said in shown.stderr


def test_sql_over_damaged_parquet_is_an_error_and_not_a_wrong_number(tmp_path):
    with Recorder(tmp_path) as recorder:
        for step in range(1, 2001):
            recorder.log_rollouts([{"step": step, "rollout": 0, "reward": math.sqrt(step)}])
    path = tmp_path / "rollouts.r0.0.parquet"
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data) // 2, 97):
        data[at] ^= 0x10
    path.write_bytes(bytes(data))
    with pytest.raises(TraceError):
        Trace.open(tmp_path).query("SELECT sum(reward) FROM rollouts")


TWO_REWARDS = """
    SELECT r.step, s.reward, r.reward FROM rollouts r JOIN steps s USING (step)
    WHERE r.step = 1 ORDER BY r.rollout LIMIT 1
"""


def test_columns_of_one_name_are_told_apart_in_json(run):
    trace = Trace.open(run)
    found = json.loads(flatline("query", run, TWO_REWARDS, "--json").stdout)
    expected = {"reward": trace.steps["reward"][1], "reward_1": trace.rollouts["reward"][0]}
    assert found == [{"step": 1, **{name: pytest.approx(v) for name, v in expected.items()}}]


ANY_TYPE = {
    "TIMESTAMP '290000-01-01'": "290000-01-01 00:00:00",
    "MAP {'a': TIMESTAMP 'infinity'}": "{a=infinity}",
    "MAP {'a': 1}": {"a": 1},
    "{'a': 1, 'b': {'c': [1, NULL]}}": {"a": 1, "b": {"c": [1, None]}},
    "'x'::ENUM ('x', 'y')": "x",
    "170141183460469231731687303715884105727::HUGEINT": "170141183460469231731687303715884105727",
    "1.5::DECIMAL(38, 2)": "1.50",
    "'\\xAA'::BLOB": "\\xAA",
    "'00000000-0000-0000-0000-000000000001'::UUID": "00000000-0000-0000-0000-000000000001",
    "[[1, NULL], []]": [[1, None], []],
    "'nan'::DOUBLE": None,
    "1::VARIANT": "1",
}


@pytest.mark.parametrize("value", ANY_TYPE)
def test_a_value_of_any_type_is_printed_as_it_is(run, value):
    result = flatline("query", run, f"SELECT {value} AS v", "--json")
    assert json.loads(result.stdout, parse_constant=pytest.fail) == [{"v": ANY_TYPE[value]}]
    assert flatline("query", run, f"SELECT {value} AS v").exit_code == 0


@pytest.mark.parametrize("json_too", [(), ("--json",)])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM test_all_types()",
        "SELECT epoch_ms(9223372036854775)",
        "EXPLAIN SELECT 1",
        "",
        "SELECT '\udc80'",
        "SELECT " + "(" * 1000,
        "SELECT * FROM '/etc/passwd'",
        "COPY steps TO 'x'",
        "SELECT error('::error::x')",
    ],
)
def test_no_statement_ends_in_a_traceback(run, sql, json_too):
    result = flatline("query", run, sql, *json_too)
    assert result.exit_code in (0, 2)
    assert "Traceback" not in result.stderr
    if json_too and not result.exit_code:
        json.loads(result.stdout, parse_constant=pytest.fail)
