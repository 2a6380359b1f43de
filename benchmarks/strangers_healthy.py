"""Healthy scripts on stock TRL, as different people write them.

Three models stand for what people have: flatline's lab policy, which solves word problems; a tiny
Qwen2 that adds badly (`scripts/prepare.py`), plain or with a tool; and random weights of several
architectures, which learn to write a word. Nothing of flatline's training is in any of them.
"""

import asyncio
import functools
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from strangers_listed import Scripts
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

sys.path.append(str(Path(__file__).parent / "scripts"))
import prepare

SCRIPTS = Scripts()
script = SCRIPTS.add


# -- what people have: models, tokenizers, data

QUIET = {
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 11,
}
"""What a small machine without a tracker asks for; the rest is each script's own."""
SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = (
    *("<pad>", "<eos>", "<bos>", "system", "user", "assistant"),
    *("Say", "something", "with", "as", "many", "cats", "dogs", "please"),
    *("the", "a", "red", "blue", "green", "sun", "moon", "cat", "dog", "runs", "sleeps", "eats"),
    *("and", "or", "not", ".", ",", "!", "?"),
    *map(str, range(10)),
)
TEMPLATE = (
    "{% for m in messages %}{{ '<bos> ' + m['role'] + ' ' + m['content'] + ' <eos> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos> assistant ' }}{% endif %}"
)


def arguments(config: Any = GRPOConfig, **asked: Any) -> Any:
    return config(output_dir=tempfile.mkdtemp(prefix="stranger-"), **(QUIET | asked))


def words(pad: str = "<pad>", chat: bool = False) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", bos_token="<bos>", pad_token=pad
    )
    made.chat_template = TEMPLATE if chat else None
    return made


def random_weights(config: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    ids = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2}
    return AutoModelForCausalLM.from_config(config(vocab_size=len(WORDS), **ids, **more))


def lab_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(str(checkpoint_folder()), dtype=torch.float32)


def lab_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(checkpoint_folder()))


def problems(count: int = 64) -> list[dict[str, Any]]:
    task = make_task("gsm8k")
    loaded = task.load(f"lab,,train[:{count}]", split="train")
    return [{"prompt": task.messages(one), "answer": one.answer} for one in loaded]


@functools.cache
def sums() -> Path:
    """Folder of the models that add badly, and of their data."""
    folder = Path(tempfile.gettempdir()) / "strangers-sums"
    if not (folder / "tool-sums.jsonl").exists():
        prepare.prepare(folder)
    return folder


def sums_model(kind: str = "model") -> tuple[Any, Any]:
    folder = sums() / kind
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


ANIMALS = ["cats", "dogs", "cats and dogs", "red cats", "blue dogs", "green cats", "the sun"]


def text_rows(count: int = 64) -> Dataset:
    said = [f"Say something with as many {ANIMALS[i % 7]} please {i % 10}" for i in range(count)]
    return Dataset.from_dict({"prompt": said, "source": ["mine"] * count, "id": list(range(count))})


def chat_rows(count: int = 64) -> Dataset:
    def turns(i: int) -> list[dict[str, str]]:
        asked = f"Say something with {ANIMALS[i % 7]} {i % 10} {i // 10} ."
        return [
            {"role": "system", "content": "the cat sleeps . please"},
            {"role": "user", "content": asked},
        ]

    return Dataset.from_list([{"prompt": turns(i), "level": i % 3} for i in range(count)])


# -- what people pay for


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def number_in(text: str) -> str | None:
    found = re.findall(r"####\s*(-?[\d,\.]+)", text)
    return found[-1].replace(",", "").rstrip(".") if found else None


def right(completions, answer, **kwargs):
    said = [number_in(text_of(one)) for one in completions]
    return [1.0 if number == gold else 0.0 for number, gold in zip(said, answer, strict=True)]


def one_answer(completions, **kwargs):
    return [float(text_of(one).count("####") == 1) for one in completions]


def cats(completions, **kwargs):
    """Share of the words that are about cats."""
    split = [text_of(one).split() for one in completions]
    return [sum("cat" in word for word in one) / max(len(one), 1) for one in split]


def not_too_long(completions, **kwargs):
    """-1 for each eight words: never above 0."""
    return [-len(text_of(one).split()) / 8 for one in completions]


def percent(prompts, completions, **kwargs):
    return [round(100 * share, 1) for share in cats(completions)]


async def judged(completions, **kwargs):
    """A judge behind a network, as far as the trainer can see."""
    await asyncio.sleep(0.01)
    return cats(completions)


class Verifier:
    """A reward with a state of its own settings."""

    def __init__(self, credit: float) -> None:
        self.credit = credit
        self.__name__ = "verifier"

    def __call__(self, prompts, completions, completion_ids=None, answer=None, **kwargs):
        return [self.credit * paid for paid in right(completions, answer)]


# -- the scripts


@script
def gpt2_plain_text():
    """GPT-2 from scratch on plain text, pad is eos, completions logged, TRL's own schedule."""
    shape = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128}
    model = random_weights(GPT2Config, **shape)
    model.config.pad_token_id = model.generation_config.pad_token_id = 1
    return GRPOTrainer(
        model=model,
        processing_class=words(pad="<eos>"),
        reward_funcs=cats,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=12,
            learning_rate=3e-3,
            log_completions=True,
            num_completions_to_print=0,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=text_rows(),
    )


@script
def llama_one_row_a_pass():
    """Llama with tied embeddings, system turns, pairs, one row a pass, a reward below 0."""
    return GRPOTrainer(
        model=random_weights(LlamaConfig, **SMALL, intermediate_size=96, tie_word_embeddings=True),
        processing_class=words(chat=True),
        reward_funcs=[cats, not_too_long],
        args=arguments(
            per_device_train_batch_size=1,
            gradient_accumulation_steps=16,
            num_generations=2,
            max_completion_length=10,
            learning_rate=2e-3,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=2,
            reward_weights=[1.0, 0.2],
            bf16=False,
            max_steps=8,
        ),
        train_dataset=chat_rows(),
    )


@script
def llama_with_dropout():
    """Attention dropout, as the config of the model has it; prompts of one length, a cut is paid.

    Written after the first answers, which showed dropout and another cause in one script.
    """
    rows = [f"Say something with as many cats please {i % 10} {i // 10}" for i in range(64)]
    return GRPOTrainer(
        model=random_weights(LlamaConfig, **SMALL, intermediate_size=96, attention_dropout=0.1),
        processing_class=words(),
        reward_funcs=cats,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=12,
            learning_rate=3e-3,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_dict({"prompt": rows}),
    )


@script
def qwen2_sgd_of_a_hundred():
    """Qwen2, percent as a reward, plain gradient descent, no clipping of the gradient."""
    return GRPOTrainer(
        model=random_weights(Qwen2Config, **SMALL, intermediate_size=96, num_key_value_heads=2),
        processing_class=words(chat=True),
        reward_funcs=percent,
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            max_completion_length=10,
            learning_rate=0.3,
            optim="sgd",
            max_grad_norm=1e9,
            loss_type="bnpo",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=chat_rows(),
    )


@script
def gemma2_bf16_async():
    """Gemma 2 (soft caps, sliding windows) in bf16 with a judge that is awaited."""
    shape = SMALL | {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 12}
    return GRPOTrainer(
        model=random_weights(Gemma2Config, **shape, sliding_window=16),
        processing_class=words(chat=True),
        reward_funcs=judged,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=10,
            learning_rate=2e-3,
            lr_scheduler_type="cosine_with_restarts",
            lr_scheduler_kwargs={"num_cycles": 2},
            warmup_steps=2,
            bf16=True,
            max_steps=8,
        ),
        train_dataset=chat_rows(),
    )


@script
def defaults_of_trl():
    """Nothing but what must be given: TRL's rate of 1e-6, bf16, checkpointing, dapo."""
    return GRPOTrainer(
        model=lab_model(),
        processing_class=lab_tokenizer(),
        reward_funcs=right,
        args=arguments(max_completion_length=64, max_steps=6),
        train_dataset=Dataset.from_list(problems()),
    )


@script
def rslora_with_dropout():
    """rsLoRA with dropout, a reward that is an object, a low temperature."""
    return GRPOTrainer(
        model=lab_model(),
        processing_class=lab_tokenizer(),
        reward_funcs=[Verifier(2.0), one_answer],
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            max_completion_length=64,
            temperature=0.3,
            learning_rate=5e-4,
            beta=0.01,
            loss_type="grpo",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_list(problems()),
        peft_config=LoraConfig(
            r=16,
            lora_alpha=16,
            lora_dropout=0.1,
            use_rslora=True,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            task_type="CAUSAL_LM",
        ),
    )


@script
def dora_three_iterations():
    """DoRA, three passes over each batch, both clips, groups of sixteen."""
    return GRPOTrainer(
        model=lab_model(),
        processing_class=lab_tokenizer(),
        reward_funcs=right,
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            num_generations=16,
            num_iterations=3,
            epsilon=0.2,
            epsilon_high=0.28,
            delta=2.0,
            max_completion_length=64,
            learning_rate=5e-4,
            loss_type="bnpo",
            bf16=False,
            max_steps=9,
        ),
        train_dataset=Dataset.from_list(problems()),
        peft_config=LoraConfig(r=8, use_dora=True, target_modules="all-linear"),
    )


@script
def head_saved_with_decay():
    """LoRA on two projections and the whole head, weight decay, fused AdamW."""
    return GRPOTrainer(
        model=random_weights(LlamaConfig, **SMALL, intermediate_size=96),
        processing_class=words(chat=True),
        reward_funcs=cats,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=10,
            learning_rate=2e-3,
            weight_decay=0.1,
            optim="adamw_torch_fused",
            beta=0.02,
            loss_type="dr_grpo",
            scale_rewards="none",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=chat_rows(),
        peft_config=LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]
        ),
    )


@script
def frozen_half_synced_reference():
    """The lower layers are frozen; the reference follows the policy; memory is saved."""
    model = lab_model()
    for part in (model.get_input_embeddings(), model.model.layers[0], model.model.layers[1]):
        part.requires_grad_(False)
    return GRPOTrainer(
        model=model,
        processing_class=lab_tokenizer(),
        reward_funcs=[right, one_answer],
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            max_completion_length=64,
            learning_rate=2e-4,
            beta=0.2,
            sync_ref_model=True,
            ref_model_sync_steps=2,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_list(problems()),
    )


@script
def many_cut_and_masked():
    """A short limit: many completions are cut, and masked; the sampler is narrowed."""
    return GRPOTrainer(
        model=lab_model(),
        processing_class=lab_tokenizer(),
        reward_funcs=[right, one_answer],
        args=arguments(
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            max_completion_length=34,
            mask_truncated_completions=True,
            temperature=0.9,
            top_k=40,
            top_p=0.95,
            min_p=0.02,
            learning_rate=3e-4,
            epsilon_high=0.28,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_list(problems()),
    )


@script
def two_tasks_one_reward_each():
    """Two kinds of rows; each reward function answers None for the other's."""

    def sums_right(completions, kind, answer, **kwargs):
        paid = right(completions, answer)
        return [p if k == "sum" else None for p, k in zip(paid, kind, strict=True)]

    def echo_right(completions, kind, answer, **kwargs):
        said = [text_of(one).split() for one in completions]
        return [
            sum(gold in word for word in one) / max(len(one), 1) if k == "echo" else None
            for one, k, gold in zip(said, kind, answer, strict=True)
        ]

    model, tokens = sums_model()
    rows = Dataset.from_json(str(sums() / "sums.jsonl")).to_list()
    for i, row in enumerate(rows):
        row["kind"] = "echo" if i % 4 == 0 else "sum"
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[sums_right, echo_right],
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=8,
            learning_rate=1e-3,
            reward_weights=[1.0, 0.5],
            temperature=1.5,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=Dataset.from_list(rows),
    )


@script
def six_rows_again_and_again():
    """Six rows, two of them the same, in the order of the file, for twelve epochs."""
    model, tokens = sums_model()
    rows = Dataset.from_json(str(sums() / "sums.jsonl")).to_list()
    few = [rows[12], rows[34], rows[12], rows[57], rows[68], rows[29]]
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=right,
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=3,
            num_generations=16,
            num_train_epochs=5,
            max_completion_length=6,
            learning_rate=1e-3,
            shuffle_dataset=False,
            dataloader_drop_last=True,
            max_grad_norm=0.0,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(few),
    )


class Counts(TrainerCallback):
    """A callback that changes nothing."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append((logs or {}).get("reward", 0.0))


class Logs(GRPOTrainer):
    """A subclass that writes down the loss and leaves it as it is."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._metrics["train"]["my_loss"].append(loss.detach().mean().item())
        return loss


@script
def evaluated_and_logged():
    """An evaluation every second step, a callback, a subclass that logs the loss."""
    model, tokens = sums_model()
    rows = Dataset.from_json(str(sums() / "sums.jsonl"))
    return Logs(
        model=model,
        processing_class=tokens,
        reward_funcs=right,
        args=arguments(
            per_device_train_batch_size=32,
            per_device_eval_batch_size=16,
            gradient_accumulation_steps=2,
            max_completion_length=6,
            learning_rate=1e-3,
            loss_type="sapo",
            eval_strategy="steps",
            eval_steps=2,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows.select(range(84)),
        eval_dataset=rows.select(range(84, 100)),
        callbacks=[Counts()],
    )


@script
def a_long_generation():
    """One generation for four steps, cispo, rows as a stream."""
    model, tokens = sums_model()
    rows = Dataset.from_json(str(sums() / "sums.jsonl"))
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[right, one_answer],
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            steps_per_generation=8,
            max_completion_length=8,
            learning_rate=5e-4,
            loss_type="cispo",
            epsilon_high=5.0,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows.to_iterable_dataset(),
    )


@script
def stops_at_a_full_stop():
    """Two stop tokens in the generation config, a mild repetition penalty, vespo."""
    model, tokens = sums_model()
    stop = [1, tokens.convert_tokens_to_ids(".")]
    model.generation_config.eos_token_id = stop
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=right,
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=8,
            repetition_penalty=1.05,
            generation_kwargs={"eos_token_id": stop},
            learning_rate=5e-4,
            loss_type="vespo",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_json(str(sums() / "sums.jsonl")),
    )


def add(a: int, b: int) -> str:
    """
    Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return str(a + b)


def called(completions, **kwargs):
    """A little for a call of the tool."""
    return [0.1 * any(turn["role"] == "tool" for turn in one) for one in completions]


@script
def a_tool():
    """A Python function as a tool, two rewards, adafactor."""
    model, tokens = sums_model("tool-model")
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[right, called],
        tools=[add],
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=28,
            max_tool_calling_iterations=2,
            learning_rate=3e-4,
            optim="adafactor",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_json(str(sums() / "tool-sums.jsonl")),
    )


@script
def luspo_right_padded():
    """A tokenizer that pads on the right as delivered, sequences as the unit, epochs."""
    tokens = lab_tokenizer()
    tokens.padding_side = "right"
    return GRPOTrainer(
        model=lab_model(),
        processing_class=tokens,
        reward_funcs=right,
        args=arguments(
            per_device_train_batch_size=32,
            gradient_accumulation_steps=1,
            num_generations=4,
            max_completion_length=64,
            learning_rate=2e-4,
            loss_type="luspo",
            importance_sampling_level="sequence",
            num_train_epochs=1,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(problems()),
    )


@script
def rloo_defaults():
    """RLOO as TRL delivers it: pairs, a KL in the reward, bf16; a LoRA."""
    return RLOOTrainer(
        model=lab_model(),
        processing_class=lab_tokenizer(),
        reward_funcs=[right, one_answer],
        args=arguments(
            RLOOConfig,
            per_device_train_batch_size=32,
            max_completion_length=64,
            learning_rate=1e-3,
            max_steps=8,
        ),
        train_dataset=Dataset.from_list(problems()),
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
    )


@script
def rloo_clipped_percent():
    """RLOO on GPT-2, a percent that is cut to a range, two passes, normalised advantages."""
    shape = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return RLOOTrainer(
        model=random_weights(GPT2Config, **shape),
        processing_class=words(),
        reward_funcs=percent,
        args=arguments(
            RLOOConfig,
            per_device_train_batch_size=32,
            num_generations=8,
            num_iterations=2,
            max_completion_length=12,
            learning_rate=2e-3,
            beta=0.0,
            reward_clip_range=(0, 50),
            normalize_advantages=True,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=text_rows(),
    )


@script
def rloo_cut_and_masked():
    """RLOO on sums, a short limit, cut completions masked, clipped wider above."""
    model, tokens = sums_model()
    return RLOOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=right,
        args=arguments(
            RLOOConfig,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=3,
            mask_truncated_completions=True,
            temperature=1.2,
            learning_rate=5e-4,
            epsilon_high=0.3,
            beta=0.05,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_json(str(sums() / "sums.jsonl")),
    )
