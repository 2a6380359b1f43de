"""A long run or log is diagnosed without a loop over its groups, and without heavy packages."""

import json
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from flatline.errors import NotRecorded
from flatline.hypotheses.groups import reward_groups
from flatline.hypotheses.h05_reward_signal import RewardSignal
from flatline.hypotheses.h33_group_integrity import GroupIntegrity
from flatline.hypotheses.logs import setting, spacing
from flatline.hypotheses.trend import trend_of
from flatline.hypotheses.weights import always, in_half, names_newest, sizes
from flatline.trace import Trace
from flatline.trace.frames import Ragged
from flatline.trace.importers import open_log
from flatline.trace.memo import once
from flatline.trace.reader import RECENT
from flatline.trace.rows import plain, to_batch
from tests.traces import healthy_rows, healthy_trace, run_facts

ASKED = """
import sys
import time
from flatline.cli import app
try:
    app(["diagnose", sys.argv[1], "--json"])
finally:
    print(sorted({"torch", "transformers", "pandas", "scipy"} & set(sys.modules)), file=sys.stderr)
"""


def test_a_log_is_diagnosed_without_loading_torch_pandas_or_scipy(tmp_path):
    rows = [{"step": s, "reward": s % 7 / 7, "kl": 0.001 * s, "entropy": 1.0} for s in range(1, 60)]
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": rows}))
    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(log)], capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout)["tested"] > 2
    assert done.stderr.splitlines()[-1] == "[]"


def test_groups_of_any_size_are_reduced_as_one_by_one_to_the_last_bit():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 40, 300)
    ragged = Ragged(rng.random(sizes.sum()), sizes)
    parts = np.split(ragged.values, np.cumsum(sizes)[:-1])
    assert [one.tolist() for one in ragged] == [one.tolist() for one in parts]
    means = ragged.each(lambda rows: rows.mean(axis=-1))
    wanted = [one.mean() if len(one) else np.nan for one in parts]
    assert np.array_equal(means, wanted, equal_nan=True)
    kept = ragged.kept(sizes > 1)
    spread = kept.each(lambda rows: rows.std(axis=-1, ddof=1))
    assert spread.tolist() == [one.std(ddof=1) for one in parts if len(one) > 1]


def test_an_answer_is_worked_out_once_for_a_trace_and_anew_for_another():
    asked = []

    @once
    def question(trace):
        asked.append(trace)
        if len(asked) == 1:
            raise NotRecorded("steps.kl")
        return len(asked)

    first, second = healthy_trace(steps=1), healthy_trace(steps=1)
    with pytest.raises(NotRecorded):
        question(first)
    assert [question(first), question(first), question(second)] == [2, 2, 3]
    assert trend_of(first) is None
    assert reward_groups(first) is reward_groups(first)


def test_columns_become_numpy_as_arrow_has_them():
    chunks = pa.chunked_array([pa.array([1.5, None]), pa.array([], pa.float64()), pa.array([2.0])])
    assert plain(chunks, -1).tolist() == [1.5, -1.0, 2.0]
    assert plain(pa.array([0, 1, None, 3], pa.int32()).slice(1), 7).tolist() == [1, 7, 3]
    assert plain(pa.array([True, None, False])).tolist() == [True, False, False]
    assert plain(pa.chunked_array([], pa.int32())).dtype == np.int32


@pytest.mark.parametrize("metrics", [
    [{"a": 1.0, "é": float("nan")}, {}, {"a": 2.5}],
    [{"a": 1.0}, None], [{"a": None}], [{"a": 1}], [{"\udce9": 1.0}],
])  # fmt: skip
def test_numbers_under_any_name_become_a_column(metrics):
    rows = [{"step": at, "kl": 0.5, "metrics": one} for at, one in enumerate(metrics)]
    batch = to_batch("steps", rows)
    batch.validate(full=True)
    found = batch.column("metrics").to_pylist()
    assert [len(one or ()) for one in found] == [len(one or ()) for one in metrics]
    assert batch.column("step").to_pylist() == list(range(len(metrics)))
    assert batch.column("loss").null_count == len(metrics)


def test_tokens_of_the_same_steps_are_read_once_and_few_sets_are_kept():
    trace = healthy_trace(steps=RECENT + 2)
    first = trace.tokens([1])
    assert trace.tokens([1]) is first
    for step in range(2, RECENT + 3):
        trace.tokens([step])
    again = trace.tokens([1])
    assert again is not first
    assert again.ids.tolist() == first.ids.tolist()


def test_a_completion_that_comes_back_is_compared_with_its_first():
    rows = healthy_rows(steps=4)
    for row in rows["rollouts"]:
        row["completion"] = "same" if row["rollout"] % 4 < 2 else f"{row['rollout']}"
        row["reward"] = float(row["rollout"] % 2)
    found = RewardSignal().sign(Trace.from_rows(run=run_facts(), **rows))
    # Four of eight say the same; the second, the fifth and the sixth are held against the first.
    assert "64 of 96 repeated completions" in found.text


def test_a_group_of_several_prompts_is_seen_and_a_prompt_without_a_name_is_none():
    rows = healthy_rows(steps=3)
    for row in rows["rollouts"][:8]:
        row["prompt_id"] = None if row["rollout"] < 4 else "one"
    assert "several" not in GroupIntegrity().sign(Trace.from_rows(run=run_facts(), **rows)).text
    rows["rollouts"][7]["prompt_id"] = "two"
    found = GroupIntegrity().sign(Trace.from_rows(run=run_facts(), **rows))
    assert "1 of 24 groups hold rollouts of several prompts" in found.text
    assert "2 prompts: None, one, two" in found.evidence[0].text


def test_tensors_are_told_apart_by_name_and_their_last_row_counts():
    rows = healthy_rows(steps=3)
    rows["weights"][-1] |= {"size": 7, "dtype": "bfloat16"}
    table = Trace.from_rows(run=run_facts(), **rows).weights
    assert sizes(table) == {"layers.0.weight": 4096, "layers.1.weight": 7}
    assert in_half(table) == {"layers.0.weight": False, "layers.1.weight": True}
    everywhere, first = np.ones(len(table), bool), table.coded("name").codes == 0
    assert always(table, everywhere, first) == {"layers.0.weight"}
    assert always(table, table["step"] == 1, everywhere) == set(), "one step is not enough"


def test_steps_that_name_older_weights_are_told():
    rows = healthy_rows(steps=4)
    for row in rows["rollouts"]:
        row["weight_version"] = {1: 0, 2: 0, 3: None, 4: 3}[row["step"]]
    trace = Trace.from_rows(run=run_facts(), **rows)
    assert names_newest(trace, np.array([1, 2, 3, 4])).tolist() == [True, False, True, True]


def test_a_setting_is_known_where_it_was_read_off_the_trainer():
    recorded = {"source": "recorder", "settings": {"beta": 0.1, "lora": None}}
    own = Trace.from_rows(run=recorded)
    assert setting(own, "beta") == 0.1
    with pytest.raises(NotRecorded, match="lora"):
        setting(own, "lora")
    assert setting(healthy_trace(steps=1), "lora") is None


def test_rows_of_a_log_stand_for_the_steps_between_them():
    assert spacing(np.array([0.0, 5, 10, 15])) == 5
    assert spacing(np.array([0.0, 1])) == 1


def test_a_log_of_very_many_columns_takes_time_in_proportion_to_them(tmp_path):
    names = [f"norm/layer_{at}" for at in range(20_000)]
    rows = [{"step": step, "reward": 0.5, **dict.fromkeys(names, step)} for step in range(1, 11)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trace = open_log(tmp_path / "log.jsonl")
    began = time.process_time()
    values = trace.metric(names[-1])
    assert time.process_time() - began < 0.5, "where it grows with their square it is 1.4 s"
    assert values.tolist() == list(range(1, 11))
