"""RL continued on a LoRA adapter that was trained before (SFT adapter saved, loaded as trainable, no new one).

Particular: the policy is a PeftModel already, so the trainer keeps a frozen copy of the adapter as reference (beta>0);
LoRA dropout; SAPO's soft gate instead of clipping; gradient checkpointing; prompts in curriculum order (easy to hard,
shuffle_dataset=False), so the reward need not rise steadily; no pad token in the tokenizer (pad = eos, which the
trainer sets), temperature below 1.
"""

import random
import tempfile

from datasets import Dataset
from material import base_args, char_tokenizer, encode, teach, tiny
from peft import LoraConfig, PeftModel, get_peft_model
from trl import GRPOConfig, GRPOTrainer


def correct(completions, answer, **kwargs):
    return [1.0 if c.strip() == a else 0.0 for c, a in zip(completions, answer)]


def close(completions, answer, **kwargs):
    """Half a point for a number that is off by one."""
    return [
        0.5 if c.strip().isdigit() and abs(int(c) - int(a)) == 1 else 0.0
        for c, a in zip(completions, answer)
    ]


def build():
    rng = random.Random(21)
    tok = char_tokenizer("0123456789+-=", pad=None, eos="<|end|>")
    end = tok.eos_token_id
    base = tiny("llama", tok, hidden=64, layers=2)
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(0, 20) for b in range(0, 20)]
    # "pretraining" of the base model
    teach(base, [encode(tok, p, a) for p, a in sums], steps=350, lr=5e-3, pad=end, batch=48)

    # the SFT adapter, on imperfect data, saved as one would
    config = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )  # fmt: skip
    sft = get_peft_model(base, config)
    noisy = []
    for _ in range(3000):
        p, a = rng.choice(sums)
        said = a if rng.random() < 0.4 else str(max(0, int(a) + rng.choice([-2, -1, 1, 2])))
        noisy.append(encode(tok, p, said))
    teach(sft, noisy, steps=150, lr=4e-3, pad=end)
    where = tempfile.mkdtemp(prefix="sft-adapter-")
    sft.save_pretrained(where)

    # reload: the base without adapter, then the adapter, trainable
    policy = PeftModel.from_pretrained(sft.unload(), where, is_trainable=True)

    hard = sorted(rng.sample(sums, 96), key=lambda row: int(row[1]))  # curriculum
    data = Dataset.from_dict({"prompt": [p for p, _ in hard], "answer": [a for _, a in hard]})
    args = GRPOConfig(
        **base_args(gradient_checkpointing=True),
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=6,
        max_steps=12,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=1,
        loss_type="sapo",
        beta=0.02,
        temperature=0.9,
        shuffle_dataset=False,
        seed=7,
    )
    return GRPOTrainer(
        model=policy,
        processing_class=tok,
        reward_funcs=[correct, close],
        args=args,
        train_dataset=data,
    )


if __name__ == "__main__":
    build().train()
