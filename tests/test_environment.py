"""Tasks inside TRL's own loop: the same tools, the same observations, the same reward."""

import json

import pytest
import torch
from datasets import Dataset
from transformers.utils import get_json_schema

from flatline.rollout.chat import ChatFormat
from flatline.tasks import TASKS, make_task
from flatline.tasks.base import ToolCall
from flatline.training.environment import (
    environment_factory,
    environment_reward,
    environment_rows,
    final_message,
    tokenizer_for_trl,
)
from flatline.training.models import load_policy

torch.set_num_threads(1)

POLICY = load_policy("lab", device="cpu")
TOKENIZER = tokenizer_for_trl(POLICY.tokenizer)
MUSIQUE = make_task("musique", retriever="golden")
TOOL_TASKS = [task.name for task in TASKS if task.tools]
SAMPLES = 2


def problem_of(task):
    return task.load("lab,,validation[:1]", split="validation")[0]


def environment_of(task):
    problem = problem_of(task)
    environment = environment_factory(task, [problem])()
    environment.reset(**environment_rows(task, [problem])[0])
    return environment


def written(turn):
    """A turn of a script as the model would write it."""
    if isinstance(turn, ToolCall):
        call = json.dumps({"name": turn.name, "arguments": turn.arguments})
        turn = f"<tool_call>\n{call}\n</tool_call>"
    return f"{turn}<|im_end|>"


def play_in_trl(task, script, folder, monkeypatch, **changes):
    """Messages and reward of a scripted play in a GRPOTrainer whose model writes the script."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl import GRPOConfig, GRPOTrainer

    problem = problem_of(task)
    seen = {}

    def reward(completions, environments, **columns):
        seen["messages"] = completions[0]
        seen["rewards"] = environment_reward(completions, environments, **columns)
        return seen["rewards"]

    settings = {"max_completion_length": 900, **changes}
    trainer = GRPOTrainer(
        model=POLICY.model,
        processing_class=TOKENIZER,
        reward_funcs=reward,
        environment_factory=environment_factory(task, [problem]),
        train_dataset=Dataset.from_list(environment_rows(task, [problem])),
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=SAMPLES,
            num_generations=SAMPLES,
            report_to=[],
            **settings,
        ),
    )
    turns = iter(script)

    def speak(prompt_ids, *args, **kwargs):
        ids = TOKENIZER(written(next(turns)))["input_ids"]
        return [list(ids) for _ in prompt_ids], None

    trainer._generate_single_turn = speak
    trainer._generate_and_score_completions(environment_rows(task, [problem]) * SAMPLES)
    assert len(set(seen["rewards"])) == 1
    return seen["messages"], seen["rewards"][0]


def reward_of(task, script):
    """What the episode itself gives for the script."""
    *calls, final = script
    episode = task.episode(problem_of(task))
    observations = [episode.observe(call).text for call in calls]
    return episode.score(final).reward, observations


@pytest.mark.parametrize("name", TOOL_TASKS)
def test_transformers_sees_the_schema_of_the_tool_but_for_default_values(name):
    environment = environment_of(make_task(name))
    for tool in environment.episode.tools:
        wanted = tool.schema()
        for parameter in wanted["function"]["parameters"]["properties"].values():
            parameter.pop("default", None)
        assert get_json_schema(getattr(environment, tool.name)) == wanted


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_the_prompt_in_trl_is_the_prompt_of_the_engine(name):
    task = make_task(name)
    environment = environment_of(task)
    messages = task.messages(problem_of(task))
    methods = [getattr(environment, tool.name) for tool in task.tools]
    rendered = TOKENIZER.apply_chat_template(
        conversation=[messages],
        tools=methods or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    ours = ChatFormat(POLICY.tokenizer, task.tools).prompt_ids(messages)
    assert rendered["input_ids"][0] == ours


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "needs the argument 'query'"),
        ({"query": "x", "self": 1}, "has no argument 'self'"),
    ],
)
def test_bad_arguments_are_observations(arguments, fault):
    environment = environment_of(MUSIQUE)
    observation = environment.retrieve_documents(**arguments)
    assert observation.startswith("Error: ")
    assert fault in observation
    assert environment.episode.events["tool_errors"] == 1


@pytest.mark.parametrize(
    ("last", "final"),
    [
        ({"role": "assistant", "content": "<answer>x</answer>"}, "<answer>x</answer>"),
        (
            {"role": "assistant", "content": "said", "reasoning_content": "thought"},
            "<think>thought</think>\nsaid",
        ),
        ({"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}, None),
        ({"role": "tool", "content": "a document"}, None),
    ],
)
def test_the_final_message_is_what_the_model_said_at_last(last, final):
    assert final_message([{"role": "assistant", "content": "earlier"}, last]) == final


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_a_gold_play_earns_in_trl_what_the_episode_gives(name, tmp_path, monkeypatch):
    task = MUSIQUE if name == "musique" else make_task(name)
    script = task.gold(problem_of(task))
    messages, reward = play_in_trl(task, script, tmp_path, monkeypatch)
    wanted, observations = reward_of(task, script)
    assert [m["content"] for m in messages if m["role"] == "tool"] == observations
    assert reward == wanted == 1.0


def test_a_play_that_is_cut_off_has_no_final_message(tmp_path, monkeypatch):
    *calls, _ = MUSIQUE.gold(problem_of(MUSIQUE))
    changes = {"max_tool_calling_iterations": len(calls) - 1}
    messages, reward = play_in_trl(MUSIQUE, calls, tmp_path, monkeypatch, **changes)
    assert final_message(messages) is None
    assert reward == reward_of(MUSIQUE, [*calls[:-1], None])[0]
