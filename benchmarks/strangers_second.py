"""What flatline says of a second round of healthy scripts, written before it was asked.

    python benchmarks/strangers.py --round second [NAME ...]

Nine scripts on stock TRL, three loops of one's own, and two that put something of their own around
stock TRL. The first line of each says why it is right.
"""

import math
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strangers
import strangers_loops
import torch
from datasets import Dataset
from peft import LoraConfig
from strangers_healthy import (
    SMALL,
    arguments,
    lab_model,
    lab_tokenizer,
    one_answer,
    problems,
    right,
    sums,
    text_of,
)
from strangers_listed import Scripts
from strangers_material import (
    byte_pairs,
    fitted,
    fresh,
    long_or_short,
    question,
    sentence,
    spaced_words,
    text_rows,
    turn_rows,
    whole_words,
)
from torch import nn
from transformers import (
    CohereConfig,
    Gemma3TextConfig,
    GraniteConfig,
    MistralConfig,
    Olmo2Config,
    OPTConfig,
    PhiConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3MoeConfig,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

import flatline

SCRIPTS = Scripts()
script = SCRIPTS.add
WIDE = SMALL | {"intermediate_size": 96}


# -- what people pay for


def about(noun: str, text: Any) -> int:
    return sum(noun in word for word in text_of(text).split())


def stars(completions, **kwargs):
    """No star without a cat; one, two or five with one, two or more."""
    return [(0, 1, 2, 5)[min(about("cat", one), 3)] for one in completions]


def mood(completions, **kwargs):
    """From -1, dogs alone, to 1, cats alone."""
    counted = [(about("cat", one), about("dog", one)) for one in completions]
    return [(cat - dog) / max(cat + dog, 1) for cat, dog in counted]


def words_written(completions, **kwargs):
    """Looked at, and not paid for."""
    return [float(len(text_of(one).split())) for one in completions]


def likelihood(completions, **kwargs):
    """A hundred times the mean log-probability of a word, in a language that is about cats."""
    known = {"cat": 0.4, "the": 0.2, "sleeps": 0.2}
    split = [text_of(one).split() or ["."] for one in completions]
    return [100 * sum(math.log(known.get(w, 0.01)) for w in one) / len(one) for one in split]


def sunny(completions, **kwargs):
    """1.1 where the sun is among the first two words, 0.7 where not."""
    return [1.1 if "sun" in text_of(one).split()[:2] else 0.7 for one in completions]


def cats(completions, **kwargs):
    """Share of the words that are about cats."""
    return [about("cat", one) / max(len(text_of(one).split()), 1) for one in completions]


# -- the scripts: stock TRL


@script
def qwen3_dapo_stars():
    """The settings of DAPO as its paper has them; stars of 0, 1, 2 or 5 are as good as 0 and 1."""
    tokens, rows = byte_pairs(), turn_rows()
    model = fresh(Qwen3Config, tokens, **WIDE, num_key_value_heads=2, head_dim=16)
    return GRPOTrainer(
        model=fitted(model, tokens, rows),
        processing_class=tokens,
        reward_funcs=stars,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=20,
            mask_truncated_completions=True,
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            loss_type="dapo",
            learning_rate=1e-3,
            warmup_steps=0.25,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
    )


@script
def opt_two_evaluations():
    """Dr. GRPO, prompts of 8 to 48 words; OPT counts positions from the mask, padding is safe."""
    tokens, rows = spaced_words(), text_rows(long_or_short)
    shape = {"ffn_dim": 96, "word_embed_proj_dim": 48, "max_position_embeddings": 256}
    # `disable_dropout` does not reach OPT, which calls torch's function instead of a module.
    model = fresh(OPTConfig, tokens, **SMALL, **shape, dropout=0.0)
    return GRPOTrainer(
        model=fitted(model, tokens, rows),
        processing_class=tokens,
        reward_funcs=[mood, words_written],
        args=arguments(
            per_device_train_batch_size=16,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations_eval=2,
            max_completion_length=24,
            reward_weights=[1.0, 0.0],
            loss_type="dr_grpo",
            scale_rewards="none",
            learning_rate=1e-3,
            eval_strategy="steps",
            eval_steps=3,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
        eval_dataset={
            "short": text_rows(question, 8, first=70),
            "long": text_rows(long_or_short, 8, first=80),
        },
    )


class StopsAt(TrainerCallback):
    """What ends a job at its time limit: a checkpoint, then no more."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@dataclass
class Resumed:
    """A script that is started twice: it stops after some steps, and goes on from there."""

    folder: str

    def trainer(self, callbacks: tuple[TrainerCallback, ...] = ()) -> Any:
        tokens, rows = byte_pairs(chat=False), text_rows(lambda i: f"{question(i)}\n")
        model = fresh(Olmo2Config, tokens, **WIDE, num_key_value_heads=2)
        asked = arguments(
            per_device_train_batch_size=32,
            max_completion_length=20,
            learning_rate=1e-3,
            loss_type="grpo",
            save_strategy="steps",
            save_steps=100,
            bf16=False,
            max_steps=8,
        )
        asked.output_dir = self.folder
        return GRPOTrainer(
            model=fitted(model, tokens, rows),
            processing_class=tokens,
            reward_funcs=cats,
            args=asked,
            train_dataset=rows,
            callbacks=list(callbacks),
        )

    def train(self, before: Any = lambda trainer: None) -> Any:
        first = self.trainer((StopsAt(4),))
        before(first)
        first.train()
        second = self.trainer()
        before(second)
        second.train(resume_from_checkpoint=True)
        return second


@script
def olmo2_resumed():
    """Weights, optimizer, schedule and random numbers come back from the checkpoint of step 4."""
    return Resumed(tempfile.mkdtemp(prefix="stranger-"))


@script
def mistral_four_passes_twice():
    """Two passes over four slices; old log-probs are kept; a reward of -460 to -90 is scaled."""
    tokens, rows = whole_words(), turn_rows()
    model = fresh(MistralConfig, tokens, **WIDE, num_key_value_heads=2, sliding_window=8)
    return GRPOTrainer(
        model=fitted(model, tokens, rows),
        processing_class=tokens,
        reward_funcs=likelihood,
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            num_iterations=2,
            max_completion_length=14,
            learning_rate=1e-3,
            lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": 0.1},
            adam_beta1=0.9,
            adam_beta2=0.95,
            adam_epsilon=1e-6,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
    )


@script
def gemma3_gspo():
    """GSPO with the clips of its paper; turns end with a token of their own, which TRL honours."""
    tokens, rows = spaced_words(), turn_rows()
    end = tokens.convert_tokens_to_ids("<end_of_turn>")
    model = fresh(
        Gemma3TextConfig,
        tokens,
        **WIDE,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    )
    model.generation_config.eos_token_id = [tokens.eos_token_id, end]
    return GRPOTrainer(
        model=fitted(model, tokens, rows, end),
        processing_class=tokens,
        reward_funcs=cats,
        args=arguments(
            per_device_train_batch_size=16,
            steps_per_generation=4,
            max_completion_length=24,
            importance_sampling_level="sequence",
            loss_type="grpo",
            beta=0.0,
            epsilon=3e-4,
            epsilon_high=4e-4,
            learning_rate=5e-4,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
    )


def judge(tokenizer: Any) -> Any:
    """A reward model: a classifier with one output, fitted to the share of cats in a text."""
    torch.manual_seed(1)
    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        num_key_value_heads=2,
        **WIDE,
    )
    model, drawn = Qwen2ForSequenceClassification(shape), random.Random(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        said = [sentence(drawn) for _ in range(32)]
        turns = [
            [
                {"role": "user", "content": question(drawn.randrange(64))},
                {"role": "assistant", "content": one},
            ]
            for one in said
        ]
        texts = tokenizer.apply_chat_template(turns, tokenize=False)
        given = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
        wrong = model(**given).logits[:, 0] - 4 * torch.tensor(cats(said))
        optimizer.zero_grad()
        wrong.square().mean().backward()
        optimizer.step()
    return model.eval()


@script
def moe_reward_model():
    """Experts with the balancing loss that their config asks for; a classifier gives the reward."""
    tokens, rows = byte_pairs(), turn_rows()
    model = fresh(
        Qwen3MoeConfig,
        tokens,
        **WIDE,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
    )
    return GRPOTrainer(
        model=fitted(model, tokens, rows),
        processing_class=tokens,
        reward_funcs=judge(tokens),
        reward_processing_classes=tokens,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=20,
            learning_rate=1e-3,
            loss_type="bnpo",
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
    )


@script
def rloo_phi_two_values():
    """RLOO in fours; with 0.7 or 1.1 as a reward many groups are all the same, the others learn."""
    tokens, rows = whole_words(), text_rows()
    model = fresh(PhiConfig, tokens, **WIDE, num_key_value_heads=4)
    return RLOOTrainer(
        model=fitted(model, tokens, rows),
        processing_class=tokens,
        reward_funcs=sunny,
        args=arguments(
            RLOOConfig,
            per_device_train_batch_size=32,
            num_generations=4,
            max_completion_length=14,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
    )


@script
def bf16_weights_lora_on_embeddings():
    """A folder by name in bf16; adapters on projections and embeddings; the head is not tied."""
    folder = sums() / "model"
    return GRPOTrainer(
        model=str(folder),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
        reward_funcs=right,
        args=arguments(
            model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "eager"},
            per_device_train_batch_size=64,
            max_completion_length=8,
            learning_rate=2e-3,
            beta=0.02,
            max_steps=8,
        ),
        train_dataset=Dataset.from_json(str(sums() / "sums.jsonl")),
        peft_config=LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "embed_tokens"],
            task_type="CAUSAL_LM",
        ),
    )


@script
def own_optimizer_last_step_incomplete():
    """An optimizer and a schedule of one's own, a KL to the weights on disk, an epoch of 9 passes
    in steps of two: TRL divides the last one by one."""
    model = lab_model()
    plain = [w for name, w in model.named_parameters() if name.endswith("bias") or w.ndim == 1]
    known = {id(weight) for weight in plain}
    rest = [weight for weight in model.parameters() if id(weight) not in known]
    optimizer = torch.optim.AdamW(
        [{"params": rest, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=3e-4
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    return GRPOTrainer(
        model=model,
        processing_class=lab_tokenizer(),
        reward_funcs=[right, one_answer],
        args=arguments(
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            steps_per_generation=3,
            max_completion_length=64,
            num_train_epochs=1,
            beta=0.04,
            loss_type="grpo",
            bf16=False,
        ),
        train_dataset=Dataset.from_list(problems(18)),
        optimizers=(optimizer, schedule),
    )


# -- the scripts: something of one's own around stock TRL


class SavesAndReads(TrainerCallback):
    """Writes the model every third step and reads it back, to be sure that it can be read."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stranger-saved-"))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % 3 == 0:
            model.save_pretrained(self.folder)
            saved = type(model).from_pretrained(self.folder, dtype=torch.float32)
            model.load_state_dict(saved.state_dict())


@script
def cohere_saved_and_loaded():
    """What is read back is what was written, bit for bit, into the same tensors."""
    tokens, rows = byte_pairs(), turn_rows()
    model = fresh(CohereConfig, tokens, **WIDE, num_key_value_heads=2, logit_scale=0.25)
    return GRPOTrainer(
        model=fitted(model, tokens, rows),
        processing_class=tokens,
        reward_funcs=cats,
        args=arguments(
            per_device_train_batch_size=32,
            max_completion_length=20,
            learning_rate=1e-3,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
        callbacks=[SavesAndReads()],
    )


class WithBottleneck(nn.Module):
    """A layer's feed-forward part, and beside it a narrow one that begins at nothing."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(width, 16, bias=False), nn.Linear(16, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden) + self.up(torch.relu(self.down(hidden)))


class KeepsABook(GRPOTrainer):
    """A subclass that counts rows and smooths the reward for its own log, and changes nothing."""

    rows_trained, smooth = 0, 0.0

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        self.rows_trained += len(inputs["completion_ids"])
        return inputs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if paid := self._metrics["train"].get("reward"):
            self.smooth = 0.9 * self.smooth + 0.1 * paid[-1]
        super().log({**logs, "rows": self.rows_trained, "smooth": self.smooth}, start_time)


@script
def granite_own_adapters():
    """Everything is frozen but narrow layers beside each feed-forward part; a book is kept."""
    tokens, rows = whole_words(), turn_rows()
    model = fresh(
        GraniteConfig,
        tokens,
        **WIDE,
        num_key_value_heads=2,
        logits_scaling=2.0,
        residual_multiplier=0.5,
        embedding_multiplier=4.0,
    )
    fitted(model, tokens, rows).requires_grad_(False)
    for layer in model.model.layers:
        layer.mlp = WithBottleneck(layer.mlp, model.config.hidden_size)
    return KeepsABook(
        model=model,
        processing_class=tokens,
        reward_funcs=cats,
        args=arguments(
            GRPOConfig,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            max_completion_length=14,
            learning_rate=5e-3,
            loss_type="grpo",
            gradient_checkpointing=False,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=rows,
    )


# -- how they are asked

SCRIPTS |= strangers_loops.SCRIPTS


@strangers.checked.register
def _(made: Resumed) -> Any:
    return flatline.checkup(made.trainer())


@strangers.checked.register
def _(made: strangers_loops.OwnLoop) -> Any:
    return flatline.checkup(made.adapted())


@strangers.recorded.register
def _(made: Resumed, run: str) -> None:
    made.train(before=lambda trainer: flatline.attach(trainer, run))


@strangers.recorded.register
def _(made: strangers_loops.OwnLoop, run: str) -> None:
    known = {"dataset_size": len(made.prompts), "distinct_prompts": len(set(made.prompts))}
    with flatline.watch(
        made.model, made.optimizer, run, tokenizer=made.tokenizer, settings=known
    ) as watch:
        made.train(watch)
