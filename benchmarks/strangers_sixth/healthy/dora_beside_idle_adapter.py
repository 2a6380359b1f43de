"""Two adapters on one model: a DoRA on the upper layers is trained, an older LoRA stays loaded and idle.

Particular: the PEFT model is made by hand; DoRA only on layers 1 and 2 (layers_to_transform) and a full copy of lm_head
(modules_to_save); the second adapter is neither active nor trainable; the base Llama has YaRN-scaled rotary positions;
answers are JSON texts; three rewards of very different scales with weights; temperature 0.8, bnpo, only the 60 % of
tokens with the highest entropy carry gradient.
"""

import json
import random

from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, encode, teach, tiny
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

NAMES = ["bo", "ana", "kim", "lee", "max", "zoe"]
TOWNS = ["rome", "oslo", "lima", "bern"]


def parse(text):
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def valid_json(completions, **kwargs):
    return [1.0 if parse(c) is not None else 0.0 for c in completions]


def fields(completions, record, **kwargs):
    """Points out of 100: one share for every field that has the right value."""
    out = []
    for text, gold_text in zip(completions, record):
        got, gold = parse(text) or {}, json.loads(gold_text)
        out.append(100.0 * sum(got.get(k) == v for k, v in gold.items()) / len(gold))
    return out


def size(completions, **kwargs):
    """Bytes written, as a cost."""
    return [-float(len(c.encode())) for c in completions]


def build():
    rng = random.Random(5)
    people = [
        {"name": n, "age": rng.randint(10, 60), "town": t} for n in NAMES for t in TOWNS for _ in range(3)
    ]

    def prompt(p):
        return f"{p['name']}, {p['age']} years, lives in {p['town']}. JSON:\n"

    corpus = [prompt(p) + json.dumps(p) for p in people]
    tok = byte_bpe_tokenizer(corpus, vocab_size=360)
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
    model = tiny("llama", tok, hidden=64, layers=3, initializer_range=0.05, rope_parameters=rope)
    clean = [encode(tok, prompt(p), json.dumps(p)) for p in people]
    unsure = []
    for _ in range(1200):
        p = rng.choice(people)
        said = dict(p)
        if rng.random() < 0.5:
            said["town"] = rng.choice(TOWNS)
        if rng.random() < 0.4:
            said["name"] = rng.choice(NAMES)
        text = json.dumps(said)
        if rng.random() < 0.2:
            text = text.replace("}", "")
        elif rng.random() < 0.2:
            text = text[:-1] + ', "note": "x"}'
        unsure.append(encode(tok, prompt(p), text))
    teach(model, clean, steps=160, lr=3e-3, pad=tok.pad_token_id, batch=24)
    teach(model, unsure, steps=100, lr=1.5e-3, pad=tok.pad_token_id, batch=24)

    policy = get_peft_model(
        model,
        LoraConfig(
            r=8,
            lora_alpha=16,
            use_dora=True,
            target_modules=["q_proj", "v_proj", "o_proj", "down_proj"],
            layers_to_transform=[1, 2],
            modules_to_save=["lm_head"],
            task_type="CAUSAL_LM",
        ),
    )
    policy.add_adapter(
        "summaries", LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    )
    policy.set_adapter("default")

    rows = rng.sample(people, 48)
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=48,
        num_generations=8,
        max_completion_length=40,
        max_steps=10,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        loss_type="bnpo",
        temperature=0.8,
        top_entropy_quantile=0.6,
        reward_weights=[0.5, 0.01, 0.004],
        seed=4,
    )
    return GRPOTrainer(
        model=policy,
        processing_class=tok,
        reward_funcs=[valid_json, fields, size],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt(p), "record": json.dumps(p)} for p in rows]),
    )


if __name__ == "__main__":
    build().train()
