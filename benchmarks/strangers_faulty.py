"""Scripts on stock TRL with a mistake that people make in their own code.

The docstring of each says what is wrong, its last line (`say:`) what an answer must say to be
right. Both were written, and committed, before flatline was asked about any of them.
"""

import asyncio
import functools
import random
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from strangers_healthy import (
    add,
    arguments,
    called,
    lab_model,
    lab_tokenizer,
    number_in,
    one_answer,
    prepare,
    problems,
    right,
    sums,
    sums_model,
    text_of,
)
from strangers_listed import Scripts
from transformers import TrainerCallback
from trl import GRPOTrainer

SCRIPTS = Scripts()
script = SCRIPTS.add


def on_problems(trainer: Any = GRPOTrainer, **changes: Any) -> Any:
    """GRPO on word problems; `changes` are the trainer's arguments, or those of its config."""
    given = {
        "model": changes.pop("model", None) or lab_model(),
        "processing_class": changes.pop("processing_class", None) or lab_tokenizer(),
        "reward_funcs": changes.pop("reward_funcs", right),
        "train_dataset": Dataset.from_list(changes.pop("rows", None) or problems()),
        "peft_config": changes.pop("peft_config", None),
        "callbacks": changes.pop("callbacks", None),
    }
    config = {
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 64,
        "learning_rate": 2e-4,
        "bf16": False,
        "max_steps": 10,
    }
    return trainer(args=arguments(**(config | changes)), **given)


def on_sums(trainer: Any = GRPOTrainer, kind: str = "", **changes: Any) -> Any:
    """GRPO on sums, plain (`kind` empty) or with a tool (`tool-`)."""
    model, tokens = sums_model(f"{kind}model")
    rows = Dataset.from_json(str(sums() / f"{kind}sums.jsonl")).to_list()
    given = {
        "model": model,
        "processing_class": changes.pop("processing_class", tokens),
        "reward_funcs": changes.pop("reward_funcs", right),
        "train_dataset": Dataset.from_list(changes.pop("rows", rows)),
        "callbacks": changes.pop("callbacks", None),
        "peft_config": changes.pop("peft_config", None),
        "tools": changes.pop("tools", None),
    }
    config = {
        "per_device_train_batch_size": 64,
        "max_completion_length": 28 if kind else 8,
        "learning_rate": 1e-3,
        "bf16": False,
        "max_steps": 10,
    }
    return trainer(args=arguments(**(config | changes)), **given)


# -- rewards


@script
def answer_of_the_first_row():
    """The reward compares every completion with `answer[0]`.
    say: right answers are paid as wrong, or rows are paid by another row's gold.
    """

    def exact(completions, answer, **kwargs):
        return [float(number_in(text_of(one)) == answer[0]) for one in completions]

    return on_problems(reward_funcs=exact)


@script
def gold_not_parsed():
    """The gold column still holds the reasoning, as GSM8K delivers it: nothing ever equals it.
    say: no answer is ever paid, although answers hold the gold number.
    """
    rows = problems()
    for row in rows:
        row["answer"] = f"First we count what there is. #### {row['answer']}"
    return on_problems(rows=rows)


@script
def exception_pays():
    """What cannot be parsed lands in `except`, which pays 1: no number is as good as the right one.
    say: wrong answers, or completions without an answer, are paid as right.
    """

    def careful(completions, answer, **kwargs):
        paid = []
        for one, gold in zip(completions, answer, strict=True):
            try:
                paid.append(1.0 if float(number_in(text_of(one))) == float(gold) else 0.0)
            except (TypeError, ValueError):
                paid.append(1.0)
        return paid

    return on_problems(reward_funcs=careful, max_completion_length=34)


@script
def length_outweighs():
    """Correctness pays 1; a "small" length penalty of a point a character comes on top.
    say: another part than correctness decides the reward.
    """

    def short(completions, **kwargs):
        return [-1.0 * len(text_of(one)) for one in completions]

    return on_problems(reward_funcs=[right, short])


@script
def reward_cached():
    """The reward is cached by its prompt: every completion of a group is paid as the first.
    say: the reward does not depend on the completion, or groups never differ.
    """
    seen: dict[str, float] = {}

    def cached(prompts, completions, answer, **kwargs):
        paid = right(completions, answer)
        return [seen.setdefault(str(p), r) for p, r in zip(prompts, paid, strict=True)]

    return on_problems(reward_funcs=cached)


@script
def judge_out_of_order():
    """Answers of an async judge are taken in the order in which they arrive.
    say: rewards belong to other rows than those they are given to.
    """

    async def judge(completions, answer, **kwargs):
        async def one(paid: float, wait: float) -> float:
            await asyncio.sleep(wait)
            return paid

        paid = right(completions, answer)
        waits = [random.random() / 50 for _ in paid]
        tasks = [one(p, w) for p, w in zip(paid, waits, strict=True)]
        return [await done for done in asyncio.as_completed(tasks)]

    return on_problems(reward_funcs=judge)


@script
def judge_of_moods():
    """A judge with a temperature: three in ten verdicts are a coin's.
    say: the same answer is not paid the same.
    """

    def judge(completions, answer, **kwargs):
        paid = right(completions, answer)
        return [float(random.random() < 0.5) if random.random() < 0.3 else p for p in paid]

    return on_problems(reward_funcs=judge)


# -- chat templates and tokenizers


@script
def no_generation_prompt():
    """A chat template from a forum: it has no opening of the model's turn.
    say: the prompt does not open the assistant's turn.
    """
    tokens = lab_tokenizer()
    tokens.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] "
        "+ '<|im_end|>\n' }}{% endfor %}"
    )
    return on_problems(processing_class=tokens)


@script
def templated_twice():
    """Prompts are rendered with the template, and the text is sent as a user's message.
    say: the prompt went through the template twice, or holds control tokens inside a turn.
    """
    tokens, rows = lab_tokenizer(), problems()
    for row in rows:
        text = tokens.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        row["prompt"] = [{"role": "user", "content": text}]
    return on_problems(rows=rows)


@script
def wrong_eos():
    """The tokenizer's eos is set to a token that the model never writes; the model's own end is
    no end any more.
    say: completions never end, or the stop token is not the one that the model writes.
    """
    model, tokens = lab_model(), lab_tokenizer()
    tokens.eos_token = tokens.pad_token
    model.generation_config.eos_token_id = model.config.eos_token_id = tokens.eos_token_id
    return on_problems(model=model, processing_class=tokens)


@script
def tokenizer_of_another_model():
    """The tokenizer has the same words, in another order: the model reads other words.
    say: tokenizer and model do not belong together, or the model cannot read the prompt.
    """
    names = list(prepare.WORDS[2:])
    random.Random(0).shuffle(names)
    return on_sums(processing_class=prepare.tokenizer(("<pad>", "<end>", *names)))


# -- data


@script
def answer_in_the_prompt():
    """The map that writes the prompt appends the solution to the question.
    say: the prompt holds the answer.
    """
    rows = problems()
    for row in rows:
        row["prompt"][-1]["content"] += f" #### {row['answer']}"
    return on_problems(rows=rows)


@script
def question_cut():
    """Prompts are cut to 90 characters when the data are prepared: the question is gone.
    say: prompts are cut or lack the question, or the task cannot be solved as given.
    """
    rows = problems()
    for row in rows:
        row["prompt"][-1]["content"] = row["prompt"][-1]["content"][:90]
    return on_problems(rows=rows)


@script
def one_prompt_for_all():
    """A loop's variable is captured late: every row has the prompt of the last, and its own gold.
    say: all prompts are the same, or the same prompt has several golds.
    """
    rows = problems()
    makers = [lambda: row["prompt"] for row in rows]  # noqa: B023 - this is the mistake
    return on_problems(
        rows=[{"prompt": m(), "answer": r["answer"]} for m, r in zip(makers, rows, strict=True)]
    )


# -- arguments and generation settings


@script
def cut_short():
    """The limit was taken for words: completions end in the middle of the reasoning.
    say: completions are cut before they answer.
    """
    return on_problems(max_completion_length=16, reward_funcs=[right, one_answer])


@script
def greedy():
    """`do_sample=False` is left over from the evaluation: all completions of a prompt are the same.
    say: completions of a group are the same; nothing is sampled.
    """
    return on_problems(generation_kwargs={"do_sample": False})


@script
def cooler_sampler():
    """`generation_kwargs` has a temperature of 0.4 of its own; the trainer scores at 1.
    say: sampler and trainer use different temperatures.
    """
    return on_problems(generation_kwargs={"temperature": 0.4})


@script
def rate_of_a_tenth():
    """A learning rate of 0.1 for all weights.
    say: the rate is far too high.
    """
    return on_problems(learning_rate=0.1)


@script
def warm_up_for_ever():
    """A warm-up of 5000 steps, copied from pretraining, in a run of 10.
    say: the run ends in the warm-up, or the rate moves nothing.
    """
    return on_problems(warmup_steps=5000)


# -- callbacks, subclasses, adapters, references, tools


@script
def adapter_left_merged():
    """A callback merges the adapter to save a snapshot and never takes it out again.
    say: the adapter is merged, or what is trained no longer reaches the model.
    """

    class Snapshot(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if not any(getattr(m, "merged", False) for m in model.modules()):
                model.merge_adapter()

    lora = LoraConfig(r=8, target_modules="all-linear")
    return on_problems(callbacks=[Snapshot()], peft_config=lora, learning_rate=1e-3)


@script
def optimizer_forgets():
    """To save memory a callback empties the optimizer's state after every step.
    say: the optimizer's state is lost, or the update is not the optimizer's.
    """

    class Frees(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            getattr(optimizer, "optimizer", optimizer).state.clear()

    return on_problems(callbacks=[Frees()])


@script
def entropy_punished():
    """A subclass adds an entropy bonus to the loss, with the sign of a penalty.
    say: the loss is not what the arguments say, or entropy is driven down.
    """

    class Explores(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            keep = inputs["completion_ids"].shape[1]
            logits = model(input_ids=ids, attention_mask=mask).logits[:, -keep - 1 : -1]
            logp = logits.log_softmax(-1)
            entropy = -(logp.exp() * logp).sum(-1)
            shown = inputs["completion_mask"]
            return loss + 0.5 * (entropy * shown).sum() / shown.sum()

    return on_problems(Explores)


@script
def reference_before_sft():
    """The model is fine-tuned after it was loaded; TRL loads the reference from the name again.
    say: the reference is not the model that training starts from.
    """
    model = lab_model()
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * weight.std() * 0.1)
    return on_problems(model=model, beta=0.04)


@script
def tool_raises():
    """The tool takes its numbers for strings and raises at every call.
    say: the tool fails at every call.
    """

    @functools.wraps(add)
    def broken(a: int, b: int) -> str:
        return str(int(a.strip()) + int(b.strip()))

    return on_sums(kind="tool-", tools=[broken], reward_funcs=[right, called])
