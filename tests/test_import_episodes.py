"""Episodes of verifiers and prime-rl: who wrote what, and what was found out later."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.errors import NotRecorded, TraceError
from flatline.rollout.record import Author
from flatline.trace.importers import open_log
from tests import framework_logs as logs
from tests.framework_logs import ANSWER_TOKENS, GROUP, PROMPTS, STEPS, TOOL_TOKENS
from tests.test_import_dumps import JUNK


def test_the_stream_knows_who_wrote_what(tmp_path):
    tokens = open_log(logs.prime_rl_stream(tmp_path)).tokens(steps=[1])
    there = slice(ANSWER_TOKENS, ANSWER_TOKENS + TOOL_TOKENS)
    assert set(tokens.author[there]) == {Author.TOOL}


def test_evaluations_of_a_training_run_are_its_held_out_reward(tmp_path):
    trace = open_log(logs.prime_rl_stream(tmp_path))
    expected = [
        np.mean([one.reward for one in ones if one.number == 0]) for ones in logs.by_step().values()
    ]
    assert trace.steps["heldout_reward"].tolist() == expected
    assert len(trace.rollouts["reward"]) == STEPS * PROMPTS * GROUP


def test_without_annotations_nothing_is_said_of_the_trainer(tmp_path):
    trace = open_log(logs.prime_rl_stream(tmp_path, annotated=False))
    tokens = trace.tokens(steps=[1])
    assert np.isfinite(tokens.sampler).any()
    with pytest.raises(NotRecorded):
        _ = tokens.trainer
    with pytest.raises(NotRecorded):
        _ = tokens.trained


def test_an_annotation_moves_a_trace_to_the_step_that_trained_on_it(tmp_path):
    one = next(logs.played())
    later = logs.shipped(one)
    later["info"]["train"]["trained_at_step"] = 5
    logs.write_jsonl(tmp_path / "traces" / "annotations" / "orchestrator.jsonl", [later])
    logs.write_jsonl(tmp_path / "traces" / "stream.jsonl", [logs.episode(one)])
    assert open_log(tmp_path).rollouts["step"].tolist() == [5]


def test_the_tokens_of_the_last_of_several_branches_are_read(tmp_path):
    record = logs.episode(next(logs.played()))
    nodes = record["traces"][0]["nodes"]
    other = {**nodes[1], "parent": 0, "token_ids": [1, 2], "mask": [True, True], "logprobs": [0, 0]}
    nodes.append(other)
    trace = open_log(logs.write_jsonl(tmp_path / "traces.jsonl", [record]))
    assert trace.tokens().ids.tolist() == [1, 2]
    assert any("1 of 1 rollouts have several sequences" in note for note in trace.run["notes"])


def test_an_evaluation_of_verifiers_is_read_without_steps_and_tokens(tmp_path):
    trace = open_log(logs.verifiers_eval(tmp_path))
    assert trace.run["source"] == "import:verifiers-episodes"
    assert set(trace.rollouts["finish"]) == {"eos"}
    assert set(trace.rollouts["turns"]) == {2.0}
    assert set(trace.rollouts["tool_calls"]) == {1.0}
    assert trace.rollouts["gold"][0] == "1"
    assert set(trace.parts()) == {"correct_answer"}
    assert len(trace.token_steps) == 0


def test_an_episode_whose_scoring_did_not_run_is_told(tmp_path):
    record, failed = (logs.episode(next(logs.played())) for _ in range(2))
    failed["traces"][0]["rewards"] = {"correct_answer": None}
    trace = open_log(logs.write_jsonl(tmp_path / "traces.jsonl", [record, failed]))
    assert len(trace.rollouts["reward"]) == 1
    assert "line 2" in trace.warnings[0]


def test_traces_of_an_agent_that_is_not_trained_are_left_out(tmp_path):
    record, judge = (logs.episode(next(logs.played())) for _ in range(2))
    judge["traces"][0]["agent"]["trainable"] = False
    record["traces"] += judge["traces"]
    trace = open_log(logs.write_jsonl(tmp_path / "traces.jsonl", [record]))
    assert len(trace.rollouts["reward"]) == 1


def test_verifiers_results_give_rollouts_with_turns_and_calls(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "search"}]}
    row = {
        "example_id": 3,
        "prompt": [{"role": "user", "content": "2+2?"}],
        "completion": [
            call,
            {"role": "tool", "content": "x"},
            {"role": "assistant", "content": "4"},
        ],
        "answer": "4",
        "reward": 1.0,
        "metrics": {"exact_match": 1.0, "num_turns": 2},
        "exact_match": 1.0,
        "is_truncated": False,
        "token_usage": {"input_tokens": 90.0, "output_tokens": 12.0},
    }
    rows = [row, {**row, "reward": 0.0, "is_truncated": True}]
    trace = open_log(logs.write_jsonl(tmp_path / "log.jsonl", rows))
    assert trace.run["source"] == "import:verifiers"
    expected = {"prompt_id": "3", "prompt": "user: 2+2?", "tool_calls": 1, "turns": 2}
    found = {name: set(trace.rollouts[name]) for name in expected}
    assert found == {name: {value} for name, value in expected.items()}
    assert trace.rollouts["finish"].tolist() == [None, "length"]
    assert trace.rollouts["model_tokens"].tolist() == [12, 12]
    assert sorted(trace.parts()) == ["exact_match", "num_turns"]
    assert trace.run["notes"][0] == "2 rollouts name no step: they are all given step 1."


def test_older_verifiers_results_have_their_metrics_beside_the_rest(tmp_path):
    row = {"prompt": "2+2?", "completion": "4", "answer": "4", "reward": 1.0, "task": "t"}
    rows = [{**row, "format_reward": 0.5, "generation_ms": 12.0}]
    trace = open_log(logs.write_jsonl(tmp_path / "log.jsonl", rows))
    assert {name: one.tolist() for name, one in trace.parts().items()} == {"format_reward": [0.5]}


def test_a_graph_that_is_no_tree_does_not_hang(tmp_path):
    record = logs.episode(next(logs.played()))
    nodes = record["traces"][0]["nodes"]
    nodes[0]["parent"], nodes[2]["parent"] = 3, 3
    open_log(logs.write_jsonl(tmp_path / "traces.jsonl", [record]))


def test_a_damaged_compressed_chunk_is_refused_by_name(tmp_path):
    logs.prime_rl_stream(tmp_path)
    path = next(tmp_path.rglob("*.zst"))
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(50))
    with pytest.raises(TraceError, match=r"00000\.jsonl\.zst"):
        open_log(tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_node_makes_the_reader_of_episodes_fail(tmp_path, data):
    record = logs.episode(next(logs.played()))
    node = data.draw(st.sampled_from(record["traces"][0]["nodes"]))
    node[data.draw(st.sampled_from([*node, "advantages", "is_content"]))] = data.draw(JUNK)
    with suppress(TraceError):
        open_log(logs.write_jsonl(tmp_path / "rows.jsonl", [record]))
