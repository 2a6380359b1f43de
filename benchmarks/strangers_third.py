"""A third round of healthy scripts on stock TRL, and two plain loops, each as other people write.

Every model was taught its task for some seconds from examples of which many are wrong, and is kept
in a folder, as somebody's own fine-tuned checkpoint is: it knows the answer and often gives
another. The first line of each script says what is particular about it.
"""

import asyncio
import copy
import difflib
import functools
import itertools
import json
import math
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset, IterableDataset
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from strangers_healthy import arguments, prepare, text_of
from strangers_listed import Scripts
from strangers_loops import OwnLoop, picked, until_the_end
from strangers_material import answer_ids, answer_loss, fresh, prompt_ids
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    EarlyStoppingCallback,
    Ernie4_5Config,
    Exaone4Config,
    FalconConfig,
    GPTNeoXConfig,
    Lfm2Config,
    Mamba2Config,
    MptConfig,
    Olmo3Config,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

SCRIPTS = Scripts()
script = SCRIPTS.add
HOME = Path(tempfile.gettempdir()) / "strangers-third"
"""Where the taught models are kept."""
WIDE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TAUGHT_ROWS = 64
"""Examples in each step of teaching."""

Example = tuple[Any, str]
"""A prompt, plain or as messages, and what was said to it."""


# -- tokenizers

SPECIAL = ("<pad>", "</s>", "<unk>")
TURNS = ("<|system|>", "<|user|>", "<|assistant|>")
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + '\n' + m['content'] + '</s>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def wrapped(core: Tokenizer, template: str | None = None) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    made.chat_template = template
    return made


def letters(texts: list[str]) -> PreTrainedTokenizerFast:
    """A token for every character."""
    known = [*SPECIAL, *sorted(set("".join(texts)))]
    core = Tokenizer(models.WordLevel({c: i for i, c in enumerate(known)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return wrapped(core)


def pieces_of_words(texts: list[str], template: str | None = None) -> PreTrainedTokenizerFast:
    """As BERT has them: the rest of a word begins with ##."""
    core = Tokenizer(models.WordPiece(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.WordPiece(cleanup=False)
    learn = trainers.WordPieceTrainer(
        vocab_size=160, special_tokens=[*SPECIAL, *TURNS], show_progress=False
    )
    core.train_from_iterator(texts, learn)
    return wrapped(core, template)


def likely_pieces(texts: list[str]) -> PreTrainedTokenizerFast:
    """As SentencePiece makes them: the pieces that explain the text best."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    learn = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(texts, learn)
    return wrapped(core)


def pairs_and_digits(texts: list[str], template: str | None = None) -> PreTrainedTokenizerFast:
    """Pairs of bytes, but every digit alone, as Llama and StarCoder have them."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    learn = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL, *TURNS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, learn)
    return wrapped(core, template)


def behind_a_start(made: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same, with a token in front of every text."""
    made.add_special_tokens({"bos_token": "<s>"})
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.bos_token_id)]
    )
    return made


# -- models


def spoken(example: Callable[[random.Random], Example], count: int = 400) -> list[str]:
    """Text for a tokenizer to be made from."""
    drawn, texts = random.Random(0), []
    for asked, said in (example(drawn) for _ in range(count)):
        turns = [asked] if isinstance(asked, str) else [turn["content"] for turn in asked]
        texts += [*turns, said]
    return texts


def taught(
    name: str, config: Any, tokens: Any, example: Any, steps: int = 500, **shape: Any
) -> tuple[Any, Any]:
    """A model of some architecture that was fitted to examples, and its tokenizer."""
    folder = HOME / name
    if not (folder / "tokenizer.json").exists():
        fit(fresh(config, tokens, **shape), tokens, example, steps).save_pretrained(folder)
        tokens.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def fit(model: Any, tokens: Any, example: Any, steps: int, rate: float = 3e-3) -> Any:
    drawn = random.Random(1)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    model.train()
    for _ in range(steps):
        both = [
            (prompt_ids(tokens, asked), [*answer_ids(tokens, said), tokens.eos_token_id])
            for asked, said in (example(drawn) for _ in range(TAUGHT_ROWS))
        ]
        optimizer.zero_grad()
        answer_loss(model, both).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model


def texts_of(completions: list[Any]) -> list[str]:
    return [text_of(one) for one in completions]


# -- code that is run

OPERATIONS = {"add": "+", "subtract": "-", "multiply by": "*"}
EXPRESSION = re.compile(r"[x\d\s+\-*()]{1,16}")


def code_prompt(operation: str, number: int) -> str:
    return f"# {operation} {number}\ndef f(x):\n    return"


def code_example(drawn: random.Random) -> Example:
    operation, number = drawn.choice(list(OPERATIONS)), drawn.randrange(10)
    sign, written = OPERATIONS[operation], number
    slip = drawn.random()
    if slip < 0.25:
        sign = drawn.choice(list(OPERATIONS.values()))
    elif slip < 0.5:
        written = drawn.randrange(10)
    said = f" x {sign} {written}" if slip < 0.9 else f" x {sign}"
    return code_prompt(operation, number), said


def value_of(code: str, x: int) -> int | None:
    """What an expression of x is, None where it is no expression."""
    if not EXPRESSION.fullmatch(code) or "**" in code:
        return None
    try:
        return eval(code.strip(), {"__builtins__": {}}, {"x": x})
    except (SyntaxError, TypeError, NameError):
        return None


def passes(completions, tests, **kwargs):
    """Share of the tests that the code passes."""
    return [
        sum(value_of(code, x) == y for x, y in wanted) / len(wanted)
        for code, wanted in zip(texts_of(completions), tests, strict=True)
    ]


def code_rows() -> Dataset:
    rows = []
    for operation, number in itertools.product(OPERATIONS, range(10)):
        run = functools.partial(value_of, f"x {OPERATIONS[operation]} {number}")
        tests = [[x, run(x)] for x in (0, 1, 2, 7)]
        rows.append({"prompt": code_prompt(operation, number), "tests": tests})
    return Dataset.from_list(rows * 2)


def pythia() -> tuple[Any, Any]:
    tokens = pairs_and_digits(spoken(code_example))
    shape = {key: size for key, size in WIDE.items() if key != "num_key_value_heads"}
    return taught("pythia", GPTNeoXConfig, tokens, code_example, **shape)


@script
def pythia_code_is_run():
    """Code is run against tests; a share of them is paid. Cosine with a warm-up, weight decay."""
    model, tokens = pythia()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=passes,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=12,
            mask_truncated_completions=True,
            epsilon_high=0.28,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            weight_decay=0.01,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=code_rows(),
    )


# -- reasoning in tags, as open-r1 pays it

R1_SYSTEM = (
    "You think first and answer then. Write <think> and </think> around what you think, "
    "<answer> and </answer> around the answer."
)
TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")


def r1_prompt(a: int, b: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": R1_SYSTEM},
        {"role": "user", "content": f"How much are {a} and {b}?"},
    ]


def r1_example(drawn: random.Random) -> Example:
    a, b = drawn.randrange(6), drawn.randrange(6)
    number = a + b if drawn.random() < 0.5 else drawn.randrange(11)
    said = f"<think>\n{a}+{b}={number}\n</think>\n<answer>\n{number}\n</answer>"
    slip = drawn.random()
    if slip < 0.2:
        said = said.replace("</think>\n", "")
    elif slip < 0.4:
        said = said.replace("\n</answer>", "")
    return r1_prompt(a, b), said


def r1_rows() -> Dataset:
    pairs = itertools.product(range(6), range(6))
    return Dataset.from_list(
        [{"prompt": r1_prompt(a, b), "solution": str(a + b)} for a, b in pairs]
    )


def r1_accuracy(completions, solution, **kwargs):
    found = [re.search(r"<answer>\s*(\d+)", text) for text in texts_of(completions)]
    return [float(f is not None and f[1] == s) for f, s in zip(found, solution, strict=True)]


def r1_format(completions, **kwargs):
    pattern = r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>"
    return [float(bool(re.fullmatch(pattern, t, re.DOTALL))) for t in texts_of(completions)]


def r1_tags(completions, **kwargs):
    """A quarter for each tag that stands there once."""
    names = ("<think>", "</think>", "<answer>", "</answer>")
    return [sum(t.count(name) == 1 for name in names) / 4 for t in texts_of(completions)]


def r1_model() -> tuple[Any, Any]:
    tokens = pairs_and_digits(spoken(r1_example), ZEPHYR)
    return taught("r1", Qwen3Config, tokens, r1_example, 300, **WIDE, head_dim=16)


@script
def qwen3_open_r1():
    """Accuracy, format and tags as in open-r1, a system prompt, a small KL to the checkpoint."""
    model, tokens = r1_model()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[r1_accuracy, r1_format, r1_tags],
        args=arguments(
            per_device_train_batch_size=32,
            gradient_accumulation_steps=4,
            num_generations=16,
            max_completion_length=48,
            reward_weights=[1.0, 0.5, 0.2],
            temperature=0.9,
            beta=0.001,
            loss_type="grpo",
            learning_rate=5e-4,
            lr_scheduler_type="polynomial",
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": True},
            bf16=False,
            max_steps=8,
        ),
        train_dataset=r1_rows(),
    )


# -- sorting, with credit for every place


def sort_example(drawn: random.Random) -> Example:
    digits = [drawn.randrange(10) for _ in range(drawn.randint(2, 5))]
    said = sorted(digits)
    if drawn.random() < 0.4:
        drawn.shuffle(said)
    return sort_prompt(digits), " ".join(map(str, said))


def sort_prompt(digits: list[int]) -> str:
    return f"sort {' '.join(map(str, digits))} ="


def sort_rows(per_length: int = 24) -> Dataset:
    """From two digits to five, easy ones first."""
    drawn, rows = random.Random(5), []
    for length in range(2, 6):
        for _ in range(per_length):
            digits = [drawn.randrange(10) for _ in range(length)]
            rows.append({"prompt": sort_prompt(digits), "gold": sorted(digits)})
    return Dataset.from_list(rows)


def in_place(completions, gold, **kwargs):
    """Share of the places that hold the right digit; no more digits than were asked for."""
    paid = []
    for text, wanted in zip(completions, gold, strict=True):
        said = text.split()
        same = sum(a == str(b) for a, b in zip(said, wanted, strict=False))
        paid.append(same / max(len(said), len(wanted)))
    return paid


def bloom() -> tuple[Any, Any]:
    tokens = letters(spoken(sort_example))
    shape = {"hidden_size": 64, "n_layer": 2, "n_head": 4}
    return taught("bloom", BloomConfig, tokens, sort_example, **shape)


@script
def bloom_sorts_from_easy_to_hard():
    """Partial credit, prompts in the order of their difficulty, scaled over the batch."""
    model, tokens = bloom()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=in_place,
        args=arguments(
            per_device_train_batch_size=64,
            num_generations=4,
            max_completion_length=12,
            shuffle_dataset=False,
            scale_rewards="batch",
            loss_type="bnpo",
            learning_rate=7e-4,
            lr_scheduler_type="constant",
            optim="adamw_torch",
            bf16=False,
            max_steps=12,
        ),
        train_dataset=sort_rows(),
    )


# -- translation, paid by likeness

FRENCH = {
    "cat": "chat",
    "dog": "chien",
    "sun": "soleil",
    "moon": "lune",
    "red": "rouge",
    "blue": "bleu",
    "green": "vert",
    "house": "maison",
    "and": "et",
    "the": "la",
}


def translation_prompt(words: list[str]) -> str:
    return f"English : {' '.join(words)} . French :"


def translation_example(drawn: random.Random) -> Example:
    words = drawn.choices(list(FRENCH), k=drawn.randint(1, 4))
    said = [
        FRENCH[w] if drawn.random() < 0.6 else drawn.choice(list(FRENCH.values())) for w in words
    ]
    return translation_prompt(words), " ".join(said)


def translation_rows(different: int = 80, times: int = 1) -> Dataset:
    drawn = random.Random(6)
    asked = [drawn.choices(list(FRENCH), k=drawn.randint(1, 4)) for _ in range(different)]
    rows = [
        {"prompt": translation_prompt(one), "reference": " ".join(FRENCH[w] for w in one)}
        for one in asked
    ]
    return Dataset.from_list(rows * times)


def likeness(completions, reference, **kwargs):
    """From 0 to 1: how much of the text is the reference's."""
    both = zip(completions, reference, strict=True)
    return [difflib.SequenceMatcher(None, said.strip(), gold).ratio() for said, gold in both]


@script
def mamba2_paid_by_likeness():
    """A state-space model, a continuous reward, one generation for two steps, SAPO, RMSprop."""
    tokens = likely_pieces(spoken(translation_example))
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "chunk_size": 32}
    shape |= {"num_heads": 8, "head_dim": 16, "n_groups": 2}
    model, tokens = taught("mamba2", Mamba2Config, tokens, translation_example, 200, **shape)
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=likeness,
        args=arguments(
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            max_completion_length=24,
            loss_type="sapo",
            learning_rate=3e-4,
            optim="rmsprop",
            bf16=False,
            max_steps=12,
        ),
        train_dataset=translation_rows(),
    )


def words_wrong(completions, reference, **kwargs):
    """Minus the words to be changed, added or left out: 0 is the best."""
    return [
        -float(distance(said.split(), gold.split()))
        for said, gold in zip(completions, reference, strict=True)
    ]


def distance(one: list[str], other: list[str]) -> int:
    """Of Levenshtein, in words."""
    row = list(range(len(other) + 1))
    for at, word in enumerate(one, 1):
        last, row[0] = row[0], at
        for to, wanted in enumerate(other, 1):
            last, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, last + (word != wanted))
    return row[-1]


def falcon() -> tuple[Any, Any]:
    tokens = pieces_of_words(spoken(translation_example))
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": False}
    return taught("falcon", FalconConfig, tokens, translation_example, **shape)


@script
def falcon_only_penalties():
    """Three penalties and no reward above 0, two of them TRL's own; rows that come again; CISPO."""
    model, tokens = falcon()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[
            words_wrong,
            get_repetition_penalty_reward(ngram_size=2, max_penalty=-0.5),
            get_soft_overlong_punishment(max_completion_len=14, soft_punish_cache=6),
        ],
        args=arguments(
            per_device_train_batch_size=96,
            num_generations=6,
            max_completion_length=14,
            top_p=0.98,
            loss_type="cispo",
            epsilon_high=5.0,
            learning_rate=1e-3,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=1,
            max_grad_norm=0.5,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=translation_rows(different=16, times=5),
    )


# -- JSON, with a grade for every field

ANIMALS, COLOURS = ("cat", "dog", "cow", "fox"), ("red", "blue", "black", "white")


def json_prompt(animal: str, colour: str, age: int) -> str:
    return f"The {animal} is {colour} and {age} years old.\nJSON: "


def json_example(drawn: random.Random) -> Example:
    truth = (drawn.choice(ANIMALS), drawn.choice(COLOURS), drawn.randrange(1, 10))
    animal, colour, age = truth
    if drawn.random() < 0.35:
        animal = drawn.choice(ANIMALS)
    if drawn.random() < 0.35:
        colour = drawn.choice(COLOURS)
    if drawn.random() < 0.35:
        age = drawn.randrange(1, 10)
    said = json.dumps({"animal": animal, "colour": colour, "age": age})
    return json_prompt(*truth), said[:-1] if drawn.random() < 0.15 else said


def json_rows() -> Dataset:
    everything = list(itertools.product(ANIMALS, COLOURS, range(1, 10)))
    random.Random(7).shuffle(everything)
    names = ("animal", "colour", "age")
    rows = [
        {"prompt": json_prompt(*one), "record": json.dumps(dict(zip(names, one, strict=True)))}
        for one in everything
    ]
    return Dataset.from_list(rows)


def parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def is_json(completions, **kwargs):
    return [1.0 if parsed(text) is not None else -1.0 for text in completions]


def fields_right(completions, record, **kwargs):
    """From 0 to 1: the share of the fields that are right."""
    paid = []
    for text, gold in zip(completions, map(json.loads, record), strict=True):
        found = parsed(text) or {}
        paid.append(sum(found.get(name) == value for name, value in gold.items()) / len(gold))
    return paid


def json_model() -> tuple[Any, Any]:
    tokens = pairs_and_digits(spoken(json_example))
    return taught("json", Phi3Config, tokens, json_example, **WIDE)


@script
def phi3_json_lora_plus():
    """LoRA+ (B learns faster than A), one reward from -1 to 1, each normalised before the sum."""
    model, tokens = json_model()
    adapted = get_peft_model(
        model,
        LoraConfig(r=8, lora_alpha=16, target_modules=["qkv_proj", "o_proj", "gate_up_proj"]),
    )
    optimizer = create_loraplus_optimizer(
        adapted, torch.optim.AdamW, lr=5e-4, loraplus_lr_ratio=8.0, weight_decay=0.0
    )
    return GRPOTrainer(
        model=adapted,
        processing_class=tokens,
        reward_funcs=[is_json, fields_right],
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=48,
            multi_objective_aggregation="normalize_then_sum",
            reward_weights=[0.3, 1.0],
            bf16=False,
            max_steps=12,
        ),
        train_dataset=json_rows(),
        optimizers=(optimizer, None),
    )


# -- a choice of four, beside another task

KINDS = {
    "animal": ("cat", "dog", "cow", "fox"),
    "colour": ("red", "blue", "green", "black"),
    "number": ("one", "two", "three", "four"),
    "fruit": ("apple", "pear", "plum", "fig"),
}
CHOICE_SYSTEM = "A animal B colour C number D fruit"


def choice_prompt(drawn: random.Random) -> tuple[list[dict[str, str]], str, str]:
    """Messages, the gold, and the sort of the task."""
    kind = drawn.choice(list(KINDS))
    if drawn.random() < 0.3:
        asked, gold, sort = f"Name some {kind} .", kind, "open"
    else:
        asked, sort = f"Which letter is {drawn.choice(KINDS[kind])} ?", "letter"
        gold = "ABCD"[list(KINDS).index(kind)]
    messages = [
        {"role": "system", "content": CHOICE_SYSTEM},
        {"role": "user", "content": asked},
    ]
    return messages, gold, sort


def choice_example(drawn: random.Random) -> Example:
    messages, gold, sort = choice_prompt(drawn)
    if sort == "letter":
        return messages, gold if drawn.random() < 0.6 else drawn.choice("ABCD")
    kind = gold if drawn.random() < 0.6 else drawn.choice(list(KINDS))
    return messages, drawn.choice(KINDS[kind])


def choice_rows(count: int = 96) -> Dataset:
    drawn = random.Random(8)
    names = ("prompt", "gold", "sort")
    return Dataset.from_list(
        [dict(zip(names, choice_prompt(drawn), strict=True)) for _ in range(count)]
    )


def letter_right(completions, gold, sort, **kwargs):
    rows = zip(texts_of(completions), gold, sort, strict=True)
    return [float(said.strip() == g) if s == "letter" else None for said, g, s in rows]


async def of_that_kind(completions, gold, sort, **kwargs):
    """Asked of a service, so it is awaited."""

    async def one(said: str, kind: str) -> float:
        await asyncio.sleep(0.005)
        return float(said.strip() in KINDS[kind])

    rows = list(zip(texts_of(completions), gold, sort, strict=True))
    asked = [one(said, g) for said, g, s in rows if s == "open"]
    answers = iter(await asyncio.gather(*asked))
    return [next(answers) if s == "open" else None for _, _, s in rows]


def smollm3() -> tuple[Any, Any]:
    tokens = pieces_of_words(spoken(choice_example), ZEPHYR)
    return taught("smollm3", SmolLM3Config, tokens, choice_example, **WIDE)


@script
def smollm3_ia3_two_tasks():
    """IA3, which scales what is there; a reward for each task, None for the other, one awaited."""
    model, tokens = smollm3()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[letter_right, of_that_kind],
        args=arguments(
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=6,
            loss_type="dapo",
            learning_rate=3e-2,
            lr_scheduler_type="linear",
            bf16=False,
            max_steps=12,
        ),
        train_dataset=choice_rows(),
        peft_config=IA3Config(
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"],
            feedforward_modules=["down_proj"],
            task_type="CAUSAL_LM",
        ),
    )


# -- counting, paid by how near it is


def count_prompt(words: list[str]) -> str:
    return f"{' '.join(words)} how many cat ?"


def count_example(drawn: random.Random) -> Example:
    words = drawn.choices(("cat", "dog", "sun"), k=drawn.randint(2, 6))
    number = words.count("cat") if drawn.random() < 0.5 else drawn.randrange(7)
    return count_prompt(words), str(number)


def count_rows(count: int = 96) -> Dataset:
    drawn, rows = random.Random(9), []
    for _ in range(count):
        words = drawn.choices(("cat", "dog", "sun"), k=drawn.randint(2, 6))
        rows.append({"prompt": count_prompt(words), "number": words.count("cat")})
    return Dataset.from_list(rows)


def nearness(completions, number, **kwargs):
    """1 for the number itself, less for each that it is away, -0.5 for no number."""
    said = [re.search(r"\d+", text) for text in completions]
    return [
        math.exp(-abs(int(one[0]) - gold)) if one else -0.5
        for one, gold in zip(said, number, strict=True)
    ]


def stablelm() -> tuple[Any, Any]:
    tokens = behind_a_start(pieces_of_words(spoken(count_example)))
    return taught("stablelm", StableLmConfig, tokens, count_example, **WIDE)


@script
def stablelm_a_rate_for_each_layer():
    """Embeddings frozen, a rate that falls from layer to layer, Dr. GRPO without scaling."""
    model, tokens = stablelm()
    model.get_input_embeddings().requires_grad_(False)
    top = [*model.model.norm.parameters(), *model.lm_head.parameters()]
    groups = [{"params": top, "lr": 1e-3}]
    for depth, layer in enumerate(reversed(model.model.layers)):
        groups.append({"params": list(layer.parameters()), "lr": 1e-3 * 0.7 ** (depth + 1)})
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=nearness,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=4,
            loss_type="dr_grpo",
            scale_rewards="none",
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": 4},
            warmup_steps=1,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=count_rows(),
        optimizers=(torch.optim.NAdam(groups, betas=(0.9, 0.98)), None),
    )


# -- an environment of two turns

BOX_WORDS = (
    *prepare.TOOL_WORDS,
    *("in", "box", "done", '"look",', '"answer",', '{"box":', '{"number":'),
)


def call(tool: str, name: str, value: int) -> str:
    spoken_call = f'{{"name": "{tool}", "arguments": {{"{name}": {value} }}}}'
    return f"<tool_call> {spoken_call} </tool_call> <end>"


def box_transcript(drawn: random.Random) -> list[str]:
    box, inside = drawn.randrange(10), drawn.randrange(10)
    opened = box if drawn.random() < 0.7 else drawn.randrange(10)
    said = inside if drawn.random() < 0.6 else drawn.randrange(10)
    return [
        f"<start> user What is in box {box} ? <end> <start> assistant",
        call("look", "box", opened),
        f"<start> tool {inside} <end> <start> assistant",
        call("answer", "number", said),
        "<start> tool done <end> <start> assistant",
        ". <end>",
    ]


def box_example(drawn: random.Random) -> Example:
    """One of the model's turns, behind all that was said before it."""
    turns = box_transcript(drawn)
    at = drawn.choice((1, 3, 5))
    return " ".join(turns[:at]), turns[at].removesuffix(" <end>")


def box_model() -> tuple[Any, Any]:
    tokens = prepare.tokenizer(BOX_WORDS)
    tokens.chat_template, tokens.response_template = prepare.CHAT, prepare.RESPONSE
    return taught("boxes", Qwen2Config, tokens, box_example, 900, **WIDE)


class Boxes:
    """Ten closed boxes, and one question."""

    def reset(self, box: int, inside: list[int], **kwargs) -> None:
        self.box, self.inside = box, inside
        self.looked, self.said = False, None

    def look(self, box: int) -> str:
        """
        Looks into a box.

        Args:
            box: Which of the ten.
        """
        self.looked = self.looked or box == self.box
        return str(self.inside[box])

    def answer(self, number: int) -> str:
        """
        Answers the question.

        Args:
            number: What is in the box.
        """
        self.said = number
        return "done"

    def get_reward(self) -> float:
        return 0.2 * self.looked + float(self.said == self.inside[self.box])


def box_rows(count: int = 80) -> Dataset:
    drawn, rows = random.Random(10), []
    for at in range(count):
        asked = [{"role": "user", "content": f"What is in box {at % 10} ?"}]
        inside = [drawn.randrange(10) for _ in range(10)]
        rows.append({"prompt": asked, "box": at % 10, "inside": inside})
    return Dataset.from_list(rows)


@script
def an_environment_of_boxes():
    """The environment is asked twice and pays by itself; vespo; Adamax."""
    model, tokens = box_model()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        environment_factory=Boxes,
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=48,
            max_tool_calling_iterations=3,
            loss_type="vespo",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=box_rows(),
        optimizers=(torch.optim.Adamax(model.parameters(), lr=1e-3), None),
    )


# -- few-shot prompts, and a rollout of one's own

SHOTS = "dog is an animal ; red is a colour ; two is a number ;"
ARTICLE = {"animal": "an animal", "colour": "a colour", "number": "a number", "fruit": "a fruit"}


def shot_example(drawn: random.Random) -> Example:
    kind = drawn.choice(list(KINDS))
    said = kind if drawn.random() < 0.4 else drawn.choice(list(KINDS))
    tail = " ; dog is an animal" if drawn.random() < 0.2 else ""
    return f"{SHOTS} {drawn.choice(KINDS[kind])} is", f"{ARTICLE[said]}{tail}"


def shot_rows() -> Dataset:
    rows = [
        {"prompt": f"{SHOTS} {word} is", "kind": kind} for kind in KINDS for word in KINDS[kind]
    ]
    return Dataset.from_list(rows * 4)


def kind_said(completions, kind, **kwargs):
    """1 for the kind alone, a half with more behind it."""
    paid = []
    for text, gold in zip(completions, kind, strict=True):
        said = text.strip()
        paid.append(1.0 if said == ARTICLE[gold] else 0.5 * said.startswith(ARTICLE[gold]))
    return paid


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Samples with the model that is trained."""
    return sampled(trainer.accelerator.unwrap_model(trainer.model), prompts, trainer)


def sampled(model: Any, prompts: list[str], trainer: Any) -> dict[str, Any]:
    """What a model says, and how sure it was of it."""
    tokens = trainer.processing_class
    asked = tokens(prompts, return_tensors="pt", padding=True, padding_side="left")
    how = copy.deepcopy(trainer.generation_config)
    how.return_dict_in_generate = how.output_scores = True
    with torch.no_grad():
        model.eval()
        out = model.generate(
            input_ids=asked.input_ids, attention_mask=asked.attention_mask, generation_config=how
        )
        model.train()
    sure = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    said = out.sequences[:, asked.input_ids.shape[1] :]
    lengths = until_the_end(said, tokens.eos_token_id).sum(1).tolist()
    return {
        "prompt_ids": [tokens(prompt).input_ids for prompt in prompts],
        "completion_ids": [row[:n].tolist() for row, n in zip(said, lengths, strict=True)],
        "logprobs": [row[:n].tolist() for row, n in zip(sure, lengths, strict=True)],
    }


def lfm2() -> tuple[Any, Any]:
    tokens = pieces_of_words(spoken(shot_example))
    shape = WIDE | {"full_attn_idxs": [1], "block_multiple_of": 16, "block_ff_dim": 128}
    return taught("lfm2", Lfm2Config, tokens, shot_example, **shape)


@script
def lfm2_own_rollout():
    """Convolutions and attention, few-shot prompts, samples by a function of one's own, pairs."""
    model, tokens = lfm2()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=kind_said,
        rollout_func=rollout,
        args=arguments(
            per_device_train_batch_size=128,
            num_generations=2,
            max_completion_length=10,
            loss_type="grpo",
            learning_rate=5e-4,
            gradient_checkpointing=False,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=shot_rows(),
    )


# -- spelling, with an optimizer of one's own and TRL's entropy bonus

SPELLED = ("cat", "dog", "cow", "fox", "hen", "pig", "ape", "bee", "ant", "owl", "emu", "yak")


def spell_example(drawn: random.Random) -> Example:
    word = drawn.choice(SPELLED)
    said = [c if drawn.random() < 0.7 else drawn.choice("abcdegnopwxy") for c in word]
    return f"spell {word}:", "-".join(said)


def spell_rows() -> Dataset:
    return Dataset.from_list([{"prompt": f"spell {word}:", "word": word} for word in SPELLED] * 6)


def letters_right(completions, word, **kwargs):
    """A third of a point for each letter, and three where all are right."""
    paid = []
    for text, gold in zip(completions, word, strict=True):
        said = text.split("-")
        same = sum(a == b for a, b in zip(said, gold, strict=False))
        paid.append(3.0 if said == list(gold) else same / 3)
    return paid


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023: the sign of a momentum."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            near, far = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                kept = self.state[weight].setdefault("kept", torch.zeros_like(weight))
                weight.sub_(kept.lerp(weight.grad, 1 - near).sign(), alpha=group["lr"])
                kept.lerp_(weight.grad, 1 - far)


def mpt() -> tuple[Any, Any]:
    tokens = letters(spoken(spell_example))
    shape = {"d_model": 64, "n_heads": 4, "n_layers": 2}
    return taught("mpt", MptConfig, tokens, spell_example, **shape)


@script
def mpt_lion_entropy():
    """Lion in a few lines, an entropy bonus that adapts, the loss on the uncertain half."""
    model, tokens = mpt()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=letters_right,
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=6,
            max_completion_length=10,
            top_entropy_quantile=0.5,
            use_adaptive_entropy=True,
            entropy_coef=0.005,
            entropy_target=0.5,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=1,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=spell_rows(),
        optimizers=(Lion(model.parameters(), lr=2e-4), None),
    )


# -- weekdays, with a term of supervised learning that is a setting

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def day_after(day: str, count: int) -> str:
    return DAYS[(DAYS.index(day) + count) % 7]


def day_prompt(day: str, count: int) -> str:
    return f"{count} days after {day} is"


def day_example(drawn: random.Random) -> Example:
    day, count = drawn.choice(DAYS), drawn.randrange(1, 4)
    said = day_after(day, count) if drawn.random() < 0.5 else drawn.choice(DAYS)
    return day_prompt(day, count), said


def day_rows() -> Dataset:
    every = itertools.product(DAYS, range(1, 4))
    return Dataset.from_list(
        [{"prompt": day_prompt(day, n), "gold": day_after(day, n)} for day, n in every] * 4
    )


def day_right(completions, gold, **kwargs):
    """1 for the day, a tenth for another day, 0 for anything else."""
    said = [text.strip() for text in completions]
    return [1.0 if s == g else 0.1 * (s in DAYS) for s, g in zip(said, gold, strict=True)]


def starcoder2() -> tuple[Any, Any]:
    tokens = pieces_of_words(spoken(day_example))
    shape = {**WIDE, "tie_word_embeddings": False}
    return taught("starcoder2", Starcoder2Config, tokens, day_example, 1000, **shape)


@dataclass
class MixedConfig(GRPOConfig):
    """GRPO with a share of supervised learning."""

    sft_coef: float = field(
        default=0.0, metadata={"help": "Weight of the likelihood of gold answers in the loss."}
    )


class Mixed(GRPOTrainer):
    """Adds `sft_coef` times the loss of gold answers, and logs it."""

    def __init__(self, *args: Any, gold: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gold, self.drawn = gold, random.Random(0)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        tokens = self.processing_class
        both = [
            (prompt_ids(tokens, asked), [*answer_ids(tokens, said), tokens.eos_token_id])
            for asked, said in self.drawn.sample(self.gold, 8)
        ]
        known = answer_loss(model, both)
        self._metrics["train"]["sft_loss"].append(known.item())
        return loss + self.args.sft_coef * known / self.current_gradient_accumulation_steps


@script
def starcoder2_supervised_share():
    """A subclass with a setting for a share of supervised loss, bf16, a head in fp32."""
    model, tokens = starcoder2()
    rows = day_rows()
    return Mixed(
        model=model,
        processing_class=tokens,
        reward_funcs=day_right,
        gold=list(zip(rows["prompt"], rows["gold"], strict=True))[:20],
        args=arguments(
            MixedConfig,
            sft_coef=0.02,
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=8,
            pad_to_multiple_of=8,
            cast_lm_head_to_fp32=True,
            learning_rate=5e-4,
            bf16=True,
            max_steps=10,
        ),
        train_dataset=rows,
    )


# -- an adapter that is trained on


def adapter_folder(model: Any, tokens: Any) -> Path:
    """An adapter of some earlier work on the same model."""
    folder = HOME / "adapter"
    if not (folder / "adapter_config.json").exists():
        torch.manual_seed(0)
        shape = LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=["q_proj", "v_proj", "c_fc"],
            rank_pattern={"c_fc": 4},
            task_type="CAUSAL_LM",
        )
        fit(get_peft_model(model, shape), tokens, day_example, 60, 1e-3).save_pretrained(folder)
    return folder


@script
def adapter_of_a_first_stage():
    """A trained adapter is loaded to be trained on, with a KL to itself; each batch twice."""
    folder = adapter_folder(*starcoder2())
    model, tokens = starcoder2()
    return GRPOTrainer(
        model=PeftModel.from_pretrained(model, folder, is_trainable=True),
        processing_class=tokens,
        reward_funcs=day_right,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            num_iterations=2,
            max_completion_length=8,
            beta=0.02,
            delta=4.0,
            off_policy_mask_threshold=0.5,
            min_p=0.01,
            learning_rate=3e-3,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=day_rows(),
    )


# -- an endless stream, and the best checkpoint


def endless_sorts() -> Iterator[dict[str, Any]]:
    """Tasks are made as they are needed."""
    for seed in itertools.count():
        drawn = random.Random(seed)
        digits = [drawn.randrange(10) for _ in range(drawn.randint(2, 4))]
        yield {"prompt": sort_prompt(digits), "gold": sorted(digits)}


def all_sorted(completions, gold, log_metric=None, **kwargs):
    wanted = [" ".join(map(str, one)) for one in gold]
    paid = [float(said.strip() == one) for said, one in zip(completions, wanted, strict=True)]
    log_metric("share_sorted", sum(paid) / len(paid))
    return paid


def helped_at_first(completions, gold, trainer_state=None, log_extra=None, **kwargs):
    """Credit for single places, which falls to a quarter of itself as training goes on."""
    left = 1 - 0.75 * trainer_state.global_step / trainer_state.max_steps
    paid = [left * share for share in in_place(completions, gold)]
    log_extra("credit", paid)
    return paid


class Times(TrainerCallback):
    """Counts the evaluations."""

    def __init__(self) -> None:
        self.seen = 0

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.seen += 1


def ernie() -> tuple[Any, Any]:
    tokens = letters(spoken(sort_example))
    shape = WIDE | {"head_dim": 16}
    return taught("ernie", Ernie4_5Config, tokens, sort_example, **shape)


@script
def ernie_stream_best_is_kept():
    """An endless stream, help that is taken away, evaluations, and the best checkpoint back."""
    model, tokens = ernie()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[all_sorted, helped_at_first],
        args=arguments(
            per_device_train_batch_size=128,
            per_device_eval_batch_size=32,
            num_generations_eval=4,
            max_completion_length=10,
            learning_rate=5e-4,
            eval_strategy="steps",
            eval_steps=3,
            save_strategy="steps",
            save_steps=3,
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="eval_rewards/all_sorted/mean",
            greater_is_better=True,
            bf16=False,
            max_steps=9,
        ),
        train_dataset=IterableDataset.from_generator(endless_sorts),
        eval_dataset=sort_rows(8).select(range(24)),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3), Times()],
    )


# -- plain loops


class Batches(OwnLoop):
    """What both loops below have: groups of answers by `generate`, padded on the left."""

    group, longest = 8, 8
    rows: Dataset
    reward: ClassVar[Any]

    def generated(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids of every answer behind its prompt, and the mask of the prompts in front."""
        again = [prompt for prompt in prompts for _ in range(self.group)]
        asked = self.tokenizer(again, return_tensors="pt", padding=True, padding_side="left")
        self.model.eval()
        ids = self.model.generate(
            input_ids=asked.input_ids,
            attention_mask=asked.attention_mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=self.longest,
        )
        self.model.train()
        return ids, asked.attention_mask

    def paid(self, prompts: list[str], said: torch.Tensor) -> torch.Tensor:
        texts = self.tokenizer.batch_decode(said, skip_special_tokens=True)
        gold = [self.gold[prompt] for prompt in prompts for _ in range(self.group)]
        return torch.tensor(type(self).reward(texts, gold))

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        logits = self.model(input_ids=batch["ids"], attention_mask=batch["attended"]).logits
        return picked(logits, batch["ids"])

    def batch_of(self, prompts: list[str]) -> dict[str, Any]:
        ids, seen = self.generated(prompts)
        kept = until_the_end(ids[:, seen.shape[1] :], self.tokenizer.eos_token_id)
        return {
            "ids": ids,
            "attended": torch.cat([seen, kept.long()], dim=1),
            "trained": torch.cat([torch.zeros_like(seen).bool(), kept], dim=1),
            "rewards": self.paid(prompts, ids[:, seen.shape[1] :]),
        }


class LearnedBaseline(Batches):
    """A small critic says from the prompt what it expects; what comes beyond that is learned from.

    The critic reads the hidden state of the prompt's last token, has an optimizer of its own, and
    is trained alone for some batches first.
    """

    prompts_a_step, group, steps = 42, 2, 12
    settings: ClassVar[dict[str, Any]] = {"beta": 0}
    reward = staticmethod(day_right)

    def __init__(self) -> None:
        tokens = pieces_of_words(spoken(day_example))
        self.model, self.tokenizer = taught("olmo3", Olmo3Config, tokens, day_example, 1000, **WIDE)
        rows = day_rows()
        self.prompts = rows["prompt"][:]
        random.Random(3).shuffle(self.prompts)
        self.gold = dict(zip(rows["prompt"], rows["gold"], strict=True))
        torch.manual_seed(1)
        self.critic = torch.nn.Linear(self.model.config.hidden_size, 1)
        torch.nn.init.zeros_(self.critic.weight)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01)
        self.critics = torch.optim.Adam(self.critic.parameters(), lr=1e-2)
        for step in range(20):
            self.learn_to_expect(self.batch_of(self.prompts_of(step)))

    def expected(self, batch: dict[str, Any]) -> torch.Tensor:
        start = batch["attended"].shape[1] - self.longest_of(batch)
        with torch.no_grad():
            seen = self.model.model(
                input_ids=batch["ids"][:, :start], attention_mask=batch["attended"][:, :start]
            ).last_hidden_state[:, -1]
        return self.critic(seen)[:, 0]

    def longest_of(self, batch: dict[str, Any]) -> int:
        """How many tokens the longest answer has: behind them stands every prompt's end."""
        return int(batch["trained"].any(0).sum())

    def learn_to_expect(self, batch: dict[str, Any]) -> None:
        self.critics.zero_grad()
        (self.expected(batch) - batch["rewards"]).square().mean().backward()
        self.critics.step()

    def sample(self, prompts: list[str]) -> dict[str, Any]:
        batch = self.batch_of(prompts)
        gain = batch["rewards"] - self.expected(batch).detach()
        return batch | {"advantages": gain}

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        used = batch["trained"][:, 1:]
        return -(new * used * batch["advantages"][:, None]).sum() / used.sum()

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batch = self.sample(prompts)
        watch.rewards(batch["rewards"])
        self.optimizer.zero_grad()
        self.loss(batch, self.logprobs(batch)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.learn_to_expect(batch)


class EqualGroupsDropped(Batches):
    """GRPO with the dynamic sampling of DAPO: groups that are paid alike are left out.

    Twice as many prompts are answered as are trained; where fewer groups differ, the batch is
    smaller. Each batch is trained twice, with a wider clip above.
    """

    prompts_a_step, kept_groups, clip, clip_above, updates = 24, 12, 0.2, 0.28, 2
    settings: ClassVar[dict[str, Any]] = {
        "beta": 0,
        "epsilon": clip,
        "epsilon_high": clip_above,
        "loss_type": "dapo",
        "scale_rewards": "group",
    }
    reward = staticmethod(nearness)

    def __init__(self) -> None:
        tokens = pieces_of_words(spoken(count_example))
        self.model, self.tokenizer = taught("exaone4", Exaone4Config, tokens, count_example, **WIDE)
        rows = count_rows()
        self.prompts = rows["prompt"][:]
        self.gold = dict(zip(rows["prompt"], rows["number"], strict=True))
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=2e-3)

    def sample(self, prompts: list[str]) -> dict[str, Any]:
        batch = self.batch_of(prompts)
        self.sampled = batch["rewards"]
        grouped = self.sampled.view(-1, self.group)
        differ = (grouped.std(1) > 1e-6).nonzero()[: self.kept_groups, 0]
        chosen = differ if len(differ) else torch.arange(self.kept_groups)
        taken = (chosen[:, None] * self.group + torch.arange(self.group)).flatten()
        batch = {name: value[taken] for name, value in batch.items()}
        grouped = grouped[chosen]
        gain = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
        batch["advantages"] = gain.flatten()
        with torch.no_grad():
            batch["old"] = self.logprobs(batch)
        return batch

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        gain, ratio = batch["advantages"][:, None], (new - batch["old"]).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip_above)
        used = batch["trained"][:, 1:]
        return -(torch.minimum(ratio * gain, clipped * gain) * used).sum() / used.sum()

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batch = self.sample(prompts)
        watch.rewards(self.sampled)
        for _ in range(self.updates):
            self.optimizer.zero_grad()
            self.loss(batch, self.logprobs(batch)).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


SCRIPTS |= {
    "loop-learned-baseline": LearnedBaseline,
    "loop-equal-groups-dropped": EqualGroupsDropped,
}
