"""A fresh rank-stabilised LoRA with a KL to the base, a shaping reward that fades out, and chat histories as prompts.

Particular: prompts are conversations of several turns (with an assistant turn inside the prompt); the reward is
"(thought)answer" format plus correctness, where the weight of the format falls to zero with trainer_state, so
the logged total can sink while the policy gets better; temperature above 1; three updates per generation batch with
two-sided clipping (delta) and off-policy sequence masking; LoRA dropout; an early-stopping callback on correctness.
"""

import random

from datasets import Dataset
from material import CHATML, base_args, char_tokenizer, encode, teach, tiny
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def chat(x, y):
    """The user first gives x, then asks for the larger of x and y."""
    return [
        {"role": "user", "content": f"x={x}"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": f"max of x,{y}?"},
    ]


def well_formed(text):
    return text.startswith("(") and text.count("(") == 1 and text.count(")") == 1


def correctness(completions, answer, **kwargs):
    return [float(c[0]["content"].rsplit(")", 1)[-1] == a) for c, a in zip(completions, answer)]


def fading_format(completions, trainer_state, **kwargs):
    left = max(0.0, 1 - trainer_state.global_step / max(1, trainer_state.max_steps))
    return [0.4 * left * well_formed(c[0]["content"]) for c in completions]


class StopWhenSolved(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if (logs or {}).get("rewards/correctness/mean", 0.0) > 0.98:
            control.should_training_stop = True


def build():
    rng = random.Random(30)
    tok = char_tokenizer(
        "abcdefghijklmnopqrstuvwxyz0123456789=,?()> \n",
        eos="<|im_end|>",
        pad="<|pad|>",
        extra=["<|im_start|>"],
    )
    tok.chat_template = CHATML
    model = tiny("llama", tok, hidden=64, layers=2, initializer_range=0.06)
    pairs = [(x, y) for x in range(10) for y in range(10) if x != y]

    def thought(x, y, said):
        return f"({x},{y}){said}"

    clean = [encode(tok, chat(x, y), thought(x, y, max(x, y))) for x, y in pairs]
    unsure = []
    for _ in range(1500):
        x, y = rng.choice(pairs)
        said = (
            max(x, y)
            if rng.random() < 0.4
            else min(x, y)
            if rng.random() < 0.7
            else rng.randint(0, 9)
        )
        unsure.append(
            encode(tok, chat(x, y), thought(x, y, said) if rng.random() < 0.7 else str(said))
        )
    teach(model, clean, steps=180, lr=2e-3, pad=tok.pad_token_id, batch=24)
    teach(model, unsure, steps=120, lr=1e-3, pad=tok.pad_token_id, batch=24)

    rows = rng.sample(pairs, 40)
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=8,
        num_iterations=3,
        max_completion_length=10,
        max_steps=12,
        learning_rate=2e-3,
        warmup_steps=1,
        lr_scheduler_type="constant_with_warmup",
        temperature=1.1,
        beta=0.01,
        delta=2.0,
        off_policy_mask_threshold=0.5,
        loss_type="dapo",
        seed=33,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=[correctness, fading_format],
        args=args,
        train_dataset=Dataset.from_dict(
            {"prompt": [chat(x, y) for x, y in rows], "answer": [str(max(x, y)) for x, y in rows]}
        ),
        peft_config=LoraConfig(
            r=8,
            lora_alpha=16,
            use_rslora=True,
            lora_dropout=0.05,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        callbacks=[StopWhenSolved()],
    )


if __name__ == "__main__":
    build().train()
