"""What the second round of strangers trains: tokenizers of three kinds, and models that can talk.

Each model is made of random weights and then fitted for a few seconds to short sentences that end,
as a model is that comes from somebody's own fine-tuning: it stops by itself, and it says of
everything a little, so that there is something to reward.
"""

import random
from typing import Any

import torch
from datasets import Dataset
from strangers_healthy import TEMPLATE, words
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

NOUNS = ("cat", "dog", "sun", "moon")
PARTS = ("the", "a", "red", "blue", "green", "runs", "sleeps", "eats", "and", "not", *NOUNS)
FITTED, FITTED_ROWS = 80, 32
"""Steps of fitting, and sentences in each."""
IGNORED = -100


def sentence(drawn: random.Random) -> str:
    """Three to eight words."""
    return " ".join([*drawn.choices(PARTS, k=drawn.randint(2, 7)), "."])


def question(number: int) -> str:
    return f"Say something with the {NOUNS[number % 4]} {number % 10} {number // 10} please"


def long_or_short(number: int) -> str:
    """A question behind nothing, or behind up to six sentences."""
    drawn = random.Random(number)
    before = [sentence(drawn) for _ in range(drawn.choice([0, 0, 1, 2, 6]))]
    return " ".join([*before, question(number)])


def text_rows(asked: Any = question, count: int = 64, first: int = 0) -> Dataset:
    return Dataset.from_list([{"prompt": asked(i)} for i in range(first, first + count)])


def turn_rows(count: int = 64) -> Dataset:
    rows = [{"prompt": [{"role": "user", "content": question(i)}]} for i in range(count)]
    return Dataset.from_list(rows)


# -- tokenizers

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<start_of_turn>' + m['role'] + '\n' + m['content'] + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def corpus() -> list[str]:
    drawn = random.Random(0)
    said = [f"{question(i)} {sentence(drawn)}\n" for i in range(400)]
    return [*said, "user\n", "assistant\n", "model\n"]


def byte_pairs(chat: bool = True) -> PreTrainedTokenizerFast:
    """Bytes and their pairs, no token at the beginning, as GPT-NeoX and Qwen have them.

    Without chat there is no padding token either, as GPT-NeoX is delivered.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    pairs = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus(), pairs)
    if not chat:
        return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=special[0])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=special[2], pad_token=special[0]
    )
    made.chat_template = CHATML
    return made


def spaced_words() -> PreTrainedTokenizerFast:
    """Words with their space in front, behind a token that begins every text, as Llama had them."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    pairs = trainers.BpeTrainer(vocab_size=130, special_tokens=special, show_progress=False)
    core.train_from_iterator(corpus(), pairs)
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", special.index("<bos>"))]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<eos>",
        bos_token="<bos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    made.chat_template = TURNS
    return made


def whole_words() -> PreTrainedTokenizerFast:
    made = words()
    made.chat_template = TEMPLATE
    return made


# -- models


def fresh(config: Any, tokenizer: Any, **shape: Any) -> Any:
    """Random weights of some architecture, with the tokens of a tokenizer."""
    torch.manual_seed(0)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": padding,
        "bos_token_id": tokenizer.bos_token_id,
    }
    asked = config(vocab_size=len(tokenizer), **ids, **shape)
    return AutoModelForCausalLM.from_config(asked, dtype=torch.float32)


def prompt_ids(tokenizer: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer(prompt).input_ids
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False).input_ids


def fitted(model: Any, tokenizer: Any, rows: Dataset, end: int | None = None) -> Any:
    """The model, fitted to answer the prompts of these rows with a sentence, and to stop."""
    drawn = random.Random(1)
    end = tokenizer.eos_token_id if end is None else end
    asked = [prompt_ids(tokenizer, row["prompt"]) for row in rows]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    model.train()
    for _ in range(FITTED):
        both = [
            (drawn.choice(asked), [*answer_ids(tokenizer, sentence(drawn)), end])
            for _ in range(FITTED_ROWS)
        ]
        optimizer.zero_grad()
        answer_loss(model, both).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model


def answer_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def answer_loss(model: Any, both: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """The mean loss of the answers' tokens, behind their prompts."""
    rows = [torch.tensor(asked + said) for asked, said in both]
    ids = pad_sequence(rows, batch_first=True)
    attended = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    labels = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    for row, (asked, _) in enumerate(both):
        labels[row, : len(asked)] = IGNORED
    logits = model(input_ids=ids, attention_mask=attended).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )
