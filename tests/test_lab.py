"""The lab policy: its tokenizer, the oracle it imitates, its checkpoint."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from flatline.errors import ModelError
from flatline.evaluate import evaluate
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Limits
from flatline.rollout.sampling import Sampling
from flatline.tasks import make_task
from flatline.training.lab import build, transcripts
from flatline.training.lab.tokenizer import build_tokenizer, checkpoint_folder
from flatline.training.models import load_policy

TOKENIZER = build_tokenizer()
CHATS = {
    play: ChatFormat(TOKENIZER, task.tools)
    for (play, _), task in zip(transcripts.MIXTURE, transcripts.tasks(), strict=True)
}
every_play = pytest.mark.parametrize("play", CHATS, ids=lambda play: play.__name__)


@given(st.text())
def test_any_text_survives_the_tokenizer(text):
    # Half a surrogate pair is not text that any tokenizer can take.
    text = text.encode("utf-8", "ignore").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Zirntira", ["Zirn", "tira"]),
        ("376", ["3", "76"]),
        ("6372", ["63", "72"]),
        ("1205", ["12", "05"]),
        (" Its mayor is ", [" Its mayor is "]),
    ],
)
def test_names_are_two_tokens_and_numbers_are_pairs_of_digits(text, tokens):
    assert TOKENIZER.tokenize(text) == tokens


@every_play
def test_a_careful_oracle_earns_nearly_everything(play):
    rewards = [
        play(CHATS[play], random.Random(i), i, transcripts.PERFECT).score.reward for i in range(40)
    ]
    assert sum(rewards) / len(rewards) > 0.98


@every_play
def test_a_careless_oracle_leaves_room_to_improve(play):
    rewards = [
        play(CHATS[play], random.Random(i), i, transcripts.CARELESS).score.reward
        for i in range(200)
    ]
    assert 0.5 < sum(rewards) / len(rewards) < 0.8


@every_play
def test_plays_are_short_and_free_of_unknown_text(play):
    """Byte tokens would mean that a phrase of the lab's texts is missing from the vocabulary."""
    for i in range(20):
        tokens = TOKENIZER.convert_ids_to_tokens(
            play(CHATS[play], random.Random(i), i, transcripts.CARELESS).ids
        )
        assert len(tokens) < 640
        assert not [token for token in tokens if token.startswith("<0x")]


def test_the_oracle_never_plays_a_problem_of_the_published_splits():
    played = {
        task.name: {problem.question for problem in task.load("lab", split="train")}
        for task in map(make_task, ("gsm8k", "toolmath"))
    }
    for play, name in ((transcripts.play_story, "gsm8k"), (transcripts.play_toolmath, "toolmath")):
        for index in range(30):
            transcript = play(CHATS[play], random.Random(0), index, transcripts.PERFECT)
            text = TOKENIZER.decode(transcript.ids)
            question = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
            assert question not in played[name]


def test_the_packaged_checkpoint_loads_with_plain_transformers_and_speaks_this_vocabulary():
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_folder())
    model = AutoModelForCausalLM.from_pretrained(checkpoint_folder())
    assert tokenizer.get_vocab() == TOKENIZER.get_vocab()
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert model.config.vocab_size >= len(tokenizer)


def test_the_packaged_checkpoint_was_built_with_the_default_recipe():
    with open(f"{checkpoint_folder()}/build.json") as file:
        facts = json.load(file)
    from dataclasses import asdict

    assert facts["recipe"] == asdict(build.Recipe())
    assert facts["careless"] == dict(transcripts.CARELESS)


def test_the_lab_policy_starts_with_a_decent_baseline_and_room_above():
    """A quick look; tests/quality holds the full figures, and those of the other tasks."""
    policy, task = load_policy("lab"), make_task("toolmath")
    engine = Engine(
        policy.model, policy.tokenizer, task, sampling=Sampling(), limits=Limits(), max_batch=64
    )
    problems = task.load("lab", split="validation")[:32]
    found = evaluate(problems, engine, samples=8)
    assert 0.4 < found.parts["combined"].value < 0.75
    assert found.group_std.value > 0.15
    assert found.pass_at_k[8].low > found.pass_at_k[1].high


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all"])
def test_a_model_folder_that_does_not_exist_is_named(name):
    with pytest.raises(ModelError, match=r"no folder .*nowhere.*"):
        load_policy(name)


def test_a_folder_without_a_model_says_what_a_policy_is(tmp_path):
    with pytest.raises(ModelError, match=r"cannot be loaded.*[\s\S]*--model lab"):
        load_policy(str(tmp_path))


def test_pickled_weights_are_never_loaded(tmp_path):
    import torch

    policy = load_policy("lab")
    policy.model.config.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    torch.save(policy.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="Pickled weights are never loaded"):
        load_policy(str(tmp_path))
