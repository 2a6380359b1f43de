"""Rollouts of verl, prime-rl, NeMo-RL, SkyRL and verifiers 0.4: right rows, groups and tokens."""

import math
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
    assert diagnose(open_log(write(tmp_path))).alarms == []


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


def verl_rows(step=None):
    scores = {"2+2": (1.0, 0.0), "3+3": (0.0, 0.0)}
    known = {} if step is None else {"step": step}
    return [
        {"input": prompt, "output": "…", "gts": "4", "score": score, "acc": score > 0, **known}
        for prompt, both in scores.items()
        for score in both
    ]


def test_a_verl_dump_keeps_parts_and_answers_and_takes_its_step_from_the_file(tmp_path):
    for step in (2, 10):
        logs.write_jsonl(tmp_path / f"{step}.jsonl", verl_rows())
    trace = open_log(tmp_path)
    assert trace.run["source"] == "import:verl"
    assert trace.steps["step"].tolist() == [2, 10]
    assert trace.steps["zero_std_share"].tolist() == [0.5, 0.5]
    assert trace.steps["reward_std_within"][0] == pytest.approx(math.sqrt(0.5) / 2)
    assert trace.parts()["acc"][:4].tolist() == [1, 0, 0, 0]
    assert trace.rollouts["gold"][0] == "4"
    with pytest.raises(NotRecorded):
        trace.rollouts["completion_tokens"]


def test_a_rollout_without_a_reward_is_told(tmp_path):
    first, second, *rest = verl_rows(1)
    rows = [first, {**second, "score": None}, *rest]
    trace = open_log(logs.write_jsonl(tmp_path / "log.jsonl", rows))
    assert len(trace.rollouts) == 3
    assert "line 2: `score` is not a number: None" in trace.warnings[0]


def test_the_uid_of_verls_v1_trainer_names_an_output_and_not_a_group(tmp_path):
    rows = [{"input": "q", "output": "a", "score": float(i), "uid": f"3f_{i}_0"} for i in range(4)]
    trace = open_log(logs.write_jsonl(tmp_path / "7.jsonl", rows))
    assert trace.rollouts["prompt_id"].tolist() == ["3f"] * 4


# --- NeMo-RL ---


@pytest.mark.parametrize(
    ("changed", "column", "expected"),
    [
        ({"rewards": [0.0], "filtered_rewards": [0.75]}, "reward", 0.75),  # dynamic sampling
        ({"sample_loss_mask": [0.0]}, "trained_tokens", 0),  # left out of the loss
        ({}, "trained_tokens", 2 * ANSWER_TOKENS),
        ({}, "completion_tokens", 2 * ANSWER_TOKENS + TOOL_TOKENS),  # without its padding
    ],
)
def test_what_a_row_of_nemo_rl_means(tmp_path, changed, column, expected):
    row = logs.nemo_rl_row(next(logs.played())) | changed
    trace = open_log(logs.write_jsonl(tmp_path / "train_data_step3.jsonl", [row]))
    assert trace.rollouts[column].tolist() == [expected]
    assert any("name no step" in note for note in trace.run["notes"])


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
