"""`flatline serve`, asked by the official client: exact tokens, tools, streams, many at once."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest
import torch

from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Limits
from flatline.rollout.sampling import Sampling
from flatline.rollout.table import Job
from flatline.serve.start import guarded_application, start
from flatline.tasks.base import ToolCall
from flatline.tasks.musique import Musique
from flatline.training.models import load_policy
from tests.served import a_bind, listening

TASK = Musique()
TOOLS = [tool.schema() for tool in TASK.tools]


@pytest.fixture(scope="module")
def policy():
    return load_policy("lab")


@pytest.fixture(scope="module")
def problems():
    return TASK.load("lab,,validation[:6]", split="validation")


@pytest.fixture(scope="module")
def served():
    return start("lab", max_batch=8, max_waiting=40)


@pytest.fixture(scope="module")
def address(served):
    bind = a_bind()
    with listening(guarded_application(served, bind), bind) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}v1", api_key="none", max_retries=0) as client:
        yield client


def asked(problem, **settings):
    settings = {"temperature": 0, "max_tokens": 128, **settings}
    return {"model": "lab", "messages": TASK.messages(problem), "tools": TOOLS, **settings}


def played(client, problem, **settings):
    """An episode, with the client in charge: ids of its last turn and the final message."""
    episode = TASK.episode(problem)
    body = asked(problem, **settings)
    messages = list(body.pop("messages"))
    answers = []
    while True:
        answer = client.chat.completions.create(messages=messages, **body)
        answers.append(answer)
        message = answer.choices[0].message
        if not message.tool_calls:
            return answers, episode
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            function = call.function
            made = ToolCall(name=function.name, arguments=json.loads(function.arguments))
            text = episode.observe(made).text
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def scored(policy, ids, first, temperature=1.0):
    """Log-probs of ids[first:] as a trainer computes them: one pass over the whole sequence."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0, first - 1 : -1]
    logps = torch.log_softmax(logits.float() / temperature, dim=-1)
    return logps.gather(1, torch.tensor(ids[first:])[:, None])[:, 0].tolist()


def test_an_episode_through_the_server_has_the_tokens_of_the_engine(client, policy, problems):
    engine = Engine(
        policy.model,
        policy.tokenizer,
        TASK,
        sampling=Sampling(temperature=0),
        limits=Limits(max_new_tokens=128),
    )
    rollouts = engine.play([Job(problem, 0) for problem in problems], seed=0)
    assert max(len(rollout.turns) for rollout in rollouts) > 2
    for problem, rollout in zip(problems, rollouts, strict=True):
        answers, episode = played(client, problem)
        last = answers[-1]
        theirs = last.prompt_token_ids + last.choices[0].token_ids
        assert theirs == rollout.prompt_ids + rollout.completion_ids
        assert episode.score(last.choices[0].message.content) == rollout.score
        assert all(answer.continued for answer in answers[1:])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_that_a_trainer_computes(client, policy, problems, temperature):
    answers, _ = played(client, problems[0], temperature=temperature, seed=3, logprobs=True)
    for answer in answers:
        (choice,) = answer.choices
        ids = answer.prompt_token_ids + choice.token_ids
        ours = [token.logprob for token in choice.logprobs.content]
        theirs = scored(policy, ids, len(answer.prompt_token_ids), temperature)
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert len(ours) == answer.usage.completion_tokens > 0


def test_a_seed_gives_the_same_answer_alone_and_in_company(client, problems):
    def answer(_):
        made = client.chat.completions.create(**asked(problems[1], temperature=1, seed=7, n=2))
        return [choice.token_ids for choice in made.choices]

    alone = answer(0)
    with ThreadPoolExecutor(12) as pool:
        assert all(ids == alone for ids in pool.map(answer, range(12)))
    assert alone[0] != alone[1], "two choices draw different numbers"


def test_a_stream_adds_up_to_the_whole_answer_tool_calls_included(client, problems):
    body = asked(problems[0], logprobs=True)
    whole = client.chat.completions.create(**body)
    with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    ours, theirs = final.choices[0], whole.choices[0]
    assert ours.finish_reason == theirs.finish_reason == "tool_calls"
    assert [c.function.arguments for c in ours.message.tool_calls] == [
        c.function.arguments for c in theirs.message.tool_calls
    ]
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    ids = [id for piece in pieces for id in getattr(piece, "token_ids", None) or []]
    logprobs = [t.logprob for piece in pieces if piece.logprobs for t in piece.logprobs.content]
    assert ids == theirs.token_ids
    assert logprobs == pytest.approx([t.logprob for t in theirs.logprobs.content], abs=1e-5)
    assert final.usage == whole.usage


def test_a_stop_string_ends_the_turn_and_is_not_part_of_it(client, policy, problems):
    prompt = ChatFormat(policy.tokenizer, TASK.tools).prompt_ids(TASK.messages(problems[0]))
    body = {"model": "lab", "prompt": prompt, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**body).choices[0].text
    stop = whole[20:26]
    for stream in (False, True):
        made = client.completions.create(**body, stop=[stop, "never"], stream=stream)
        chunks = list(made) if stream else [made]
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole[: whole.find(stop)]
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].choices[0].stop_reason == stop


def test_token_ids_in_give_token_ids_out_as_prime_rl_asks(address, policy, problems):
    prompt = ChatFormat(policy.tokenizer, TASK.tools).prompt_ids(TASK.messages(problems[0]))
    params = {"temperature": 1.0, "max_tokens": 8, "seed": 1, "stop_token_ids": [2], "logprobs": 1}
    body = {"model": "lab", "token_ids": prompt, "sampling_params": params}
    answer = httpx2.post(f"{address}inference/v1/generate", json=body).json()
    (choice,) = answer["choices"]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert tokens == [f"token_id:{id}" for id in choice["token_ids"]]
    theirs = scored(policy, prompt + choice["token_ids"], len(prompt))
    assert [e["logprob"] for e in choice["logprobs"]["content"]] == pytest.approx(theirs, abs=1e-4)


def test_new_weights_raise_the_version_and_change_the_answers(tmp_path, policy, problems):
    import copy

    other = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    other.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    bind = a_bind()
    with (
        listening(guarded_application(start("lab"), bind), bind) as address,
        openai.OpenAI(base_url=f"{address}v1", api_key="none") as client,
    ):
        before = client.chat.completions.create(**asked(problems[0]))
        told = httpx2.post(f"{address}update_weights", json={"weight_dir": str(tmp_path)}).json()
        after = client.chat.completions.create(**asked(problems[0]))
        bad = httpx2.post(f"{address}update_weights", json={"weight_dir": "org/some-model"})
    assert told == {"status": "ok", "weight_version": 1}
    assert (before.weight_version, after.weight_version) == (0, 1)
    assert before.choices[0].token_ids != after.choices[0].token_ids
    assert bad.status_code == 400 and "no folder" in bad.json()["error"]["message"]
