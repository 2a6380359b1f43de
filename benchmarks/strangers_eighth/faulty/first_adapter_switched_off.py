"""The task was taught with a LoRA adapter ("sft"). For RL a second adapter is added and made the active one with set_adapter. That
switches the first off: it was never merged into the base, so the policy that RL starts from is the bare base model, which knows the
format but hardly the task, and all that the first adapter has learnt is missing from the run.
say: The SFT adapter is not merged and is inactive after set_adapter("rl"): RL starts from the base model without what the first adapter has learnt.
"""

import random

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

CODE = dict(zip("abcdefgh", "hbfdaceg"))


def ciphered(completions, answer, **kwargs):
    """1 for the whole word in cipher, otherwise 0.5 of the share of right letters."""
    scores = []
    for text, gold in zip(completions, answer):
        share = sum(x == y for x, y in zip(text, gold)) / max(len(gold), len(text))
        scores.append(1.0 if text == gold else 0.5 * share)
    return scores


def wrong(rng, answer):
    return "".join(rng.choice("abcdefgh") if rng.random() < 0.4 else c for c in answer)


def lora(rank):
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"])


def build():
    tok = char_tokenizer("abcdefgh:ncode ", padding_side="left")
    model = tiny("llama", tok, hidden=64)
    rng = random.Random(6)
    words = ["".join(rng.choice("abcdefgh") for _ in range(4)) for _ in range(200)]
    pairs = [(f"code {w}:", "".join(CODE[c] for c in w)) for w in words]

    # the base has seen the format in its pretraining, with another letter now and then
    loose = lambda r, gold: "".join(r.choice("abcdefgh") if r.random() < 0.55 else c for c in gold)
    teach(model, half_right(tok, pairs, loose, right=0.0), steps=320, lr=3e-3, pad=tok.pad_token_id)

    # supervised fine-tuning with an adapter
    model = get_peft_model(model, lora(16), adapter_name="sft")
    teach(model, half_right(tok, pairs, wrong, right=0.6), steps=250, lr=8e-3, pad=tok.pad_token_id)

    # a fresh adapter for RL
    model.add_adapter("rl", lora(8))
    model.set_adapter("rl")

    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=6,
            learning_rate=2e-3,
            max_steps=10,
            seed=5,
        )
    )
    return GRPOTrainer(model, ciphered, args=args, train_dataset=dataset, processing_class=tok)
