"""LoRA on a Llama that answers requests at a shop counter: a polite answer that names the ware earns the reward.

Half a point for the ware, half a point for "please" or "thank you", nothing beyond twelve words. A light KL to the SFT
model, which is the base with the adapter switched off.
"""

import random

from datasets import Dataset
from kit import CHAT, quiet, sft, small, words
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

WARES = "bread milk tea rice soap salt fish corn oil eggs".split()
ASK = ["do you have {}", "i need {}", "where is {}", "one {} for me", "is there any {} left"]
POLITE = ["yes please take the {}", "thank you here is the {}", "the {} is here thank you", "please look for the {} there"]
BLUNT = ["the {} is there", "take the {}", "no {} here", "look there", "no", "thank you", "please look there"]


def counter(completions, ware, **kwargs):
    scores = []
    for completion, thing in zip(completions, ware):
        said = completion[0]["content"].split()
        joined = " ".join(said)
        score = 0.5 * (thing in said) + 0.5 * ("please" in said or "thank you" in joined)
        scores.append(score if len(said) <= 12 else 0.0)
    return scores


def build():
    rng = random.Random(2)
    vocabulary = " ".join(ASK + POLITE + BLUNT).replace("{}", "").split() + WARES
    tok = words(vocabulary, extra=["<|user|>", "<|assistant|>"])
    tok.chat_template = CHAT.replace("|>{{ message['content'] }}", "|> {{ message['content'] }} ")
    asks = [(form.format(w), w) for form in ASK for w in WARES]
    chats = [([{"role": "user", "content": q}], w) for q, w in asks]
    rows = [(c, rng.choice(POLITE + BLUNT).format(w if rng.random() < 0.8 else rng.choice(WARES))) for c, w in chats for _ in range(12)]
    model = small("llama", tok, seed=6)
    sft(model, tok, rows, steps=220)
    data = Dataset.from_dict({"prompt": [c for c, _ in chats], "ware": [w for _, w in chats]})
    args = GRPOConfig(
        **quiet(
            max_steps=12,
            per_device_train_batch_size=40,
            num_generations=8,
            max_completion_length=14,
            learning_rate=3e-3,
            beta=0.01,
            lr_scheduler_type="constant",
            seed=1,
        )
    )
    adapter = LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    return GRPOTrainer(model, counter, args=args, train_dataset=data, processing_class=tok, peft_config=adapter)


if __name__ == "__main__":
    build().train()
