"""Rollouts of verl, prime-rl, NeMo-RL, SkyRL and verifiers 0.4: right rows, groups and tokens."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatline.diagnosis.report import diagnose
from flatline.errors import NotRecorded, TraceError
from flatline.rollout.record import Author
from flatline.trace.importers import dumps, open_log
from flatline.trace.importers.rollouts import KINDS
from tests import framework_logs as logs
from tests.framework_logs import ANSWER_TOKENS, GROUP, PROMPT_TOKENS, PROMPTS, STEPS, TOOL_TOKENS

COUNT = STEPS * PROMPTS * GROUP
ALL = (
    logs.verl_rollouts,
    logs.nemo_rl_train_data,
    logs.skyrl_evals,
    logs.prime_rl_token_export,
    logs.prime_rl_stream,
)
WITH_TOKENS = (logs.nemo_rl_train_data, logs.prime_rl_token_export, logs.prime_rl_stream)
everywhere = pytest.mark.parametrize("write", ALL, ids=lambda write: write.__name__)
with_tokens = pytest.mark.parametrize("write", WITH_TOKENS, ids=lambda write: write.__name__)


@everywhere
def test_every_rollout_comes_with_its_reward_its_step_and_its_group(tmp_path, write):
    trace = open_log(write(tmp_path))
    expected = list(logs.played())
    assert trace.rollouts["reward"].tolist() == [one.reward for one in expected]
    assert trace.rollouts["step"].tolist() == [one.step for one in expected]
    assert trace.groups().n == STEPS * PROMPTS
    assert set(trace.groups().size) == {GROUP}
    assert trace.steps["reward"].tolist() == [0.5] * STEPS
    assert trace.steps["zero_std_share"].tolist() == [0.0] * STEPS
    assert trace.run["unrecognised"] == []
    assert trace.warnings == []


@everywhere
def test_no_healthy_dump_sets_off_an_alarm(tmp_path, write):
    report = diagnose(open_log(write(tmp_path)))
    assert [finding.hypothesis for finding in report.alarms] == []
    assert not [f for f in report.findings if "defect of flatline" in f.text]


@with_tokens
def test_tokens_are_split_into_prompt_and_completion(tmp_path, write):
    tokens = open_log(write(tmp_path)).tokens(steps=[1])
    first = next(logs.played())
    assert tokens.prompt_ids[:PROMPT_TOKENS].tolist() == first.ids[:PROMPT_TOKENS]
    length = len(first.ids) - PROMPT_TOKENS
    assert tokens.ids[:length].tolist() == first.ids[PROMPT_TOKENS:]
    assert tokens.trained[:length].tolist() == first.sampled[PROMPT_TOKENS:]
    mine = np.array(first.sampled[PROMPT_TOKENS:])
    assert ((tokens.author[:length] == Author.MODEL) == mine).all()
    for found, wanted in ((tokens.sampler, first.logprobs), (tokens.trainer, first.trainer)):
        at = np.array(wanted[PROMPT_TOKENS:])[mine]
        assert found[:length][mine] == pytest.approx(at, abs=1e-3)


@with_tokens
def test_a_dump_with_tokens_is_judged_as_bf16_and_says_so(tmp_path, write):
    trace = open_log(write(tmp_path))
    assert trace.settings["bf16"] is True
    assert any("judged as bf16" in note for note in trace.run["notes"])
    assert trace.rollouts["advantage"].tolist() == [one.advantage for one in logs.played()]
    assert set(trace.rollouts["trained_tokens"]) == {2 * ANSWER_TOKENS}


def test_only_the_first_and_the_last_steps_keep_their_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "TOKEN_STEPS", 2)
    trace = open_log(logs.nemo_rl_train_data(tmp_path))
    assert trace.token_steps.tolist() == [1, 2, STEPS - 1, STEPS]
    assert len(trace.rollouts["reward"]) == COUNT


def test_two_runs_in_a_folder_are_refused_by_name(tmp_path):
    logs.nemo_rl_train_data(tmp_path / "exp_001")
    logs.nemo_rl_train_data(tmp_path / "exp_002")
    with pytest.raises(TraceError, match="exp_002"):
        open_log(tmp_path)


# --- verl ---


def test_the_uid_of_verls_v1_trainer_names_an_output_and_not_a_group(tmp_path):
    rows = [{"input": "q", "output": "a", "score": float(i), "uid": f"3f_{i}_0"} for i in range(4)]
    trace = open_log(logs.write_jsonl(tmp_path / "7.jsonl", rows))
    assert trace.rollouts["prompt_id"].tolist() == ["3f"] * 4


# --- NeMo-RL ---


def test_with_dynamic_sampling_the_reward_of_a_row_is_the_filtered_one(tmp_path):
    row = logs.nemo_rl_row(next(logs.played())) | {"rewards": [0.0], "filtered_rewards": [0.75]}
    trace = open_log(logs.write_jsonl(tmp_path / "train_data_step3.jsonl", [row]))
    assert trace.rollouts["reward"].tolist() == [0.75]


def test_a_sample_that_is_left_out_of_the_loss_trains_no_token(tmp_path):
    row = logs.nemo_rl_row(next(logs.played()))
    rows = [row, row | {"sample_loss_mask": [0.0]}]
    trace = open_log(logs.write_jsonl(tmp_path / "train_data_step1.jsonl", rows))
    assert trace.rollouts["trained_tokens"].tolist() == [2 * ANSWER_TOKENS, 0]


def test_a_single_file_of_nemo_rl_takes_no_step_from_its_name_and_says_so(tmp_path):
    row = logs.nemo_rl_row(next(logs.played()))
    trace = open_log(logs.write_jsonl(tmp_path / "train_data_step4.jsonl", [row]))
    assert any("name no step" in note for note in trace.run["notes"])


def test_padding_behind_the_end_of_a_sequence_is_no_token(tmp_path):
    trace = open_log(logs.nemo_rl_train_data(tmp_path))
    assert set(trace.rollouts["completion_tokens"]) == {2 * ANSWER_TOKENS + TOOL_TOKENS}


# --- prime-rl and verifiers ---


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
    assert len(trace.rollouts["reward"]) == COUNT


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
    record = logs.episode(next(logs.played()))
    failed = json.loads(json.dumps(record))
    failed["traces"][0]["rewards"] = {"correct_answer": None}
    trace = open_log(logs.write_jsonl(tmp_path / "traces.jsonl", [record, failed]))
    assert len(trace.rollouts["reward"]) == 1
    assert "line 2" in trace.warnings[0]


def test_traces_of_an_agent_that_is_not_trained_are_left_out(tmp_path):
    record = logs.episode(next(logs.played()))
    judge = json.loads(json.dumps(record["traces"][0]))
    judge["agent"]["trainable"] = False
    record["traces"].append(judge)
    trace = open_log(logs.write_jsonl(tmp_path / "traces.jsonl", [record]))
    assert len(trace.rollouts["reward"]) == 1


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


# --- SkyRL ---


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "global_step_1_training_input.pkl"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(TraceError, match="pickle"):
        open_log(path)


# --- hostile rows ---

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_row_makes_an_importer_fail_with_anything_but_a_trace_error(tmp_path, kind, data):
    names = sorted(KINDS[kind].known)
    row = {name: data.draw(JUNK) for name in names}
    path = logs.write_jsonl(tmp_path / "rows.jsonl", [row])
    with suppress(TraceError):
        open_log(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_node_makes_the_reader_of_episodes_fail(tmp_path, data):
    record = logs.episode(next(logs.played()))
    node = data.draw(st.sampled_from(record["traces"][0]["nodes"]))
    node[data.draw(st.sampled_from([*node, "advantages", "is_content"]))] = data.draw(JUNK)
    with suppress(TraceError):
        open_log(logs.write_jsonl(tmp_path / "rows.jsonl", [record]))


# --- what a dump is good for ---


def test_a_dump_whose_trainer_trains_on_tool_output_is_found_out(tmp_path):
    tool = slice(PROMPT_TOKENS + ANSWER_TOKENS, PROMPT_TOKENS + ANSWER_TOKENS + TOOL_TOKENS)
    for step, ones in logs.by_step().items():
        rows = [logs.nemo_rl_row(one) for one in ones]
        for row in rows:
            row["token_loss_mask"][0][tool] = [1] * TOOL_TOKENS
            row["prev_logprobs"][0][tool] = [-6.0] * TOOL_TOKENS
        logs.write_jsonl(tmp_path / f"train_data_step{step}.jsonl", rows)
    report = diagnose(open_log(tmp_path))
    assert report.causes[0].hypothesis == "H02"


def test_a_dump_whose_trainer_scores_another_context_is_found_out(tmp_path):
    rng = np.random.default_rng(3)
    for step, ones in logs.by_step().items():
        rows = [logs.prime_rl_token_row(one) for one in ones]
        for row in rows:
            row["trainer_logprobs"] = (-rng.exponential(3.0, len(row["token_ids"]))).tolist()
        path = tmp_path / "token_exports" / f"step_{step}" / "rank_0.jsonl"
        logs.write_jsonl(path, rows)
    assert "H20" in [finding.hypothesis for finding in diagnose(open_log(tmp_path)).alarms]
