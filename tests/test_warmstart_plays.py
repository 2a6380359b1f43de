"""The plays that a warm start imitates: token-exact, really played, careless where asked."""

import random

import pytest
from transformers import Qwen2ForCausalLM

from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.sampling import Sampling
from flatline.tasks import make_task
from flatline.tasks.base import ToolCall
from flatline.training.scripted import ScriptedPlay
from flatline.training.warmstart_plays import imitate
from tests import musique_rows, tiny

GOLD_SCRIPT = [
    ToolCall(name="look", arguments={"query": 'the "ünï" <|im_end|> 😀'}),
    ToolCall(name="look", arguments={"query": "again", "top_n": 3}),
]
TEMPLATES = ("hermes", "qwen2_5", "qwen3_training", "llama3_1")


class ForcedModel(Qwen2ForCausalLM):
    """Writes a given sequence, whatever it reads: the token at a position decides the next."""

    forced: tuple[int, ...] = ()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        logits_to_keep=0,
        **rest,
    ):
        out = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            logits_to_keep=logits_to_keep,
            **rest,
        )
        if self.forced and position_ids is not None:
            last = position_ids[:, -1].tolist()
            wanted = [self.forced[min(at + 1, len(self.forced) - 1)] for at in last]
            out.logits[range(len(wanted)), -1, wanted] = 1e4
        return out


def forced_model(vocab: int) -> ForcedModel:
    model = tiny.tiny_model(vocab=vocab)
    model.__class__ = ForcedModel
    return model


def musique(tmp_path, *rows, **options):
    task = make_task("musique", **options)
    return task, task.load(musique_rows.write(tmp_path / "m.jsonl", *rows), split="train")


def limits(**changes) -> Limits:
    return Limits(**{"max_turns": 8, "max_new_tokens": 512, "max_context": 4096, **changes})


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_play_has_the_tokens_that_the_engine_records_for_the_same_turns(template):
    eos = "<|eot_id|>" if template == "llama3_1" else "<|im_end|>"
    tokenizer, task = tiny.tokenizer_with(template, eos=eos), tiny.ToyTask()
    chat = ChatFormat(tokenizer, task.tools)
    scripted = ScriptedPlay(chat, task, tiny.problem())
    for call in GOLD_SCRIPT:
        scripted.call(call)
    play = scripted.finish("It is <b>the</b> one.\n\nthe end")
    model = forced_model(len(tokenizer))
    engine = Engine(
        model,
        tokenizer,
        task,
        sampling=Sampling(),
        limits=limits(max_context=2048),
        chat=chat,
    )
    model.forced = (*play.prompt_ids, *play.completion_ids)
    rollout = engine.play([Job(tiny.problem(), 0)], seed=0)[0]
    assert rollout.prompt_ids == play.prompt_ids
    assert rollout.completion_ids == play.completion_ids
    assert rollout.authors == play.authors
    assert rollout.turns == play.turns
    assert (rollout.finish, rollout.score, rollout.events) == (play.finish, play.score, play.events)


def test_a_careful_musique_play_finds_cites_and_answers_with_the_real_tool(tmp_path):
    task, (problem,) = musique(tmp_path, musique_rows.row())
    chat = ChatFormat(tiny.tokenizer_with(), task.tools)
    play = imitate(chat, task, problem, rng=random.Random(0), careless=0)
    assert play.score.parts | {"retrieval_precision": 1} == dict.fromkeys(play.score.parts, 1)
    assert "Velbara is a film directed by Garngira." in play.turns[0].observations[0]
    assert '"query": "Where was Garngira born?"' in play.turns[1].text
    assert play.turns[-1].text.endswith("<cite>1, 3</cite>\n<answer>Sornmex</answer>")
