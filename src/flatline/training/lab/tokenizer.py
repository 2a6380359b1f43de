"""The tokenizer of the lab policy: whole phrases for boilerplate, two syllables a name.

A small model on a CPU needs short sequences. So everything the lab's texts repeat (chat markers,
the tool-call frame, relation phrases, the system prompts) is one token each, a name is two and a
number up to 99 is one. Any other text falls back to bytes, so nothing is lost.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from flatline.rollout.chat import load_chat_template
from flatline.tasks import TASKS
from flatline.tasks.names import HEADS, TAILS
from flatline.tasks.stories import EVENTS, ITEMS, QUESTION, START
from flatline.tasks.world import RELATIONS, TYPES

PAD, START_OF_TURN, END_OF_TURN = "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START_OF_TURN, END_OF_TURN)
TAGS = tuple(
    mark.format(tag)
    for tag in ("tool_call", "tool_response", "think", "cite", "answer")
    for mark in ("<{}>", "</{}>")
)
MAX_LENGTH = 1024

_QUESTION_MARK = "\x00"
_PAIRS_OF_DIGITS = r"\d{1,2}(?=(?:\d\d)*(?!\d))"
_PHRASE, _SYLLABLE, _BYTE = -1.0, -1.01, -20.0


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, made from the texts the lab's tasks can produce."""
    bare = _tokenizer([])
    phrases = dict.fromkeys([*_phrases(), *_prompt_pieces(bare)])
    return _tokenizer([p for p in phrases if p and p not in TAGS])


def _tokenizer(phrases: list[str]) -> PreTrainedTokenizerFast:
    numbers = [str(n) for n in range(10)] + [f"{n:02d}" for n in range(100)]
    scored: dict[str, float] = dict.fromkeys(SPECIAL, 0.0)
    for words, score in (
        (TAGS, _PHRASE),
        (phrases, _PHRASE),
        (numbers, _PHRASE),
        (HEADS, _SYLLABLE),
        (TAILS, _SYLLABLE),
    ):
        scored |= {word: score for word in words if word not in scored}
    unknown = len(scored)
    vocabulary = [*scored.items(), ("<unk>", _BYTE), *((f"<0x{b:02X}>", _BYTE) for b in range(256))]
    core = Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=True))
    # Numbers are cut into pairs from the right, so 376 is always 3|76 whatever stands around it.
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_PAIRS_OF_DIGITS), "isolated")
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END_OF_TURN,
        additional_special_tokens=[START_OF_TURN],
        chat_template=load_chat_template("hermes"),
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _phrases() -> Iterator[str]:
    """Every fixed piece of text between names and numbers."""
    for relation in RELATIONS:
        for fact in relation.facts:
            yield from re.split(r"\{[yz]\}", " " + fact)
        for question in relation.questions:
            yield from re.split(r"\{[xz]\}", question)
        yield f"the {relation.name} of "
        yield f" {relation.name}"
        yield relation.name
    for type_ in TYPES:
        yield f" is a {type_}."
    for sentence in (START, QUESTION, *EVENTS.values()):
        for item in ITEMS:
            yield from _story_pieces(sentence.replace("{i}", item))
    yield from ("a", "b", "c", "d", "; ", ". What is ", "?", " = <<", "=", ">>", "\n", "#### ")
    yield from (" = ", " + ", " - ", " * ", "+", "-", "*", "/", " ", ", ", ".", " for ")
    yield from ("Document ID: ", "\n# ", "No documents found.")
    yield from ('\n{"name": "retrieve_documents", "arguments": {"query": "', '", "top_n": ')
    yield from ('\n{"name": "calculate", "arguments": {"expression": "', '"}}\n', "}}\n")


def _story_pieces(sentence: str) -> Iterator[str]:
    for start in ("", " "):
        yield from re.split(r"\{[nmab]\}", start + sentence)


def _prompt_pieces(bare: PreTrainedTokenizerFast) -> Iterator[str]:
    """What the chat template writes around questions and turns, cut where tokens must be."""
    replies = [{"role": "assistant", "content": ""}, {"role": "tool", "content": _QUESTION_MARK}]
    for task_type in TASKS:
        task = task_type()
        blank = replace(task.load("lab,,train[:1]", split="train")[0], question=_QUESTION_MARK)
        text = bare.apply_chat_template(
            [*task.messages(blank), *replies],
            tools=[tool.schema() for tool in task.tools] or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        marks = "|".join(map(re.escape, (*SPECIAL, _QUESTION_MARK, *TAGS[2:4])))
        for piece in re.split(f"(?:{marks})", text):
            yield from (part for part in re.split(_PAIRS_OF_DIGITS, piece) if part)


def checkpoint_folder() -> str:
    """Where the packaged lab policy lies."""
    return str(files("flatline.training.lab") / "checkpoint")
