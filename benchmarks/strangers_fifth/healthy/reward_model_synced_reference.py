"""A learned reward model (sequence classifier) with another tokenizer, and a brevity cost with a negative weight.

Particular: the reward is the raw logit of a GPT-NeoX-style classifier (unbounded, any sign) that reads prompt plus
completion; reward_weights has a negative entry; full fine-tuning with beta>0 and a reference that is moved towards the
policy (sync_ref_model); the policy is given as a path; BNPO loss; evaluation on a disjoint set with fewer generations.
"""

import random

import torch
from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, encode, on_disk, teach, tiny, word_tokenizer
from transformers import GPTNeoXConfig, GPTNeoXForSequenceClassification, set_seed
from trl import GRPOConfig, GRPOTrainer

NICE = "thanks glad happy please welcome sure".split()
CURT = "no whatever busy wrong stop bad".split()
FILL = "the order is here and we will send it today".split()
NAMES = "ann bob carl dora emil fay gus hana ivan june".split()
TOPICS = "order refund delivery invoice account password".split()


def reply(rng):
    return " ".join(
        rng.choice([rng.choice(NICE), rng.choice(CURT), rng.choice(FILL)])
        for _ in range(rng.randint(3, 8))
    )


def question(name, topic):
    return f"{name} asks about the {topic} ; reply :"


def train_reward_model(tok, texts, targets, steps=200):
    """Regress a politeness score: stands for a reward model trained on preferences."""
    set_seed(0)
    model = GPTNeoXForSequenceClassification(
        GPTNeoXConfig(
            vocab_size=len(tok), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_labels=1, pad_token_id=tok.pad_token_id, max_position_embeddings=256, _name_or_path="politeness-rm",
        )
    )  # fmt: skip
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(0)
    targets = torch.tensor(targets)
    for _ in range(steps):
        pick = torch.randint(len(texts), (32,), generator=gen)
        batch = tok(
            [texts[i] for i in pick], return_tensors="pt", padding=True, add_special_tokens=False
        )
        score = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[
            :, 0
        ]
        loss = torch.nn.functional.mse_loss(score, targets[pick])
        loss.backward()
        opt.step()
        opt.zero_grad()
    return model.eval().requires_grad_(False)


def wordiness(completions, **kwargs):
    return [len(c.split()) / 10 for c in completions]


def build():
    rng = random.Random(31)
    prompts = [question(n, t) for n in NAMES for t in TOPICS]
    rng.shuffle(prompts)
    tok = word_tokenizer(" ".join(prompts).split() + NICE + CURT + FILL)
    policy = tiny("gpt_neox", tok, hidden=64)
    lessons = [encode(tok, rng.choice(prompts), reply(rng)) for _ in range(2000)]
    teach(policy, lessons, steps=150, lr=3e-3, pad=tok.pad_token_id)

    texts, scores = [], []
    for _ in range(1500):
        p, r = rng.choice(prompts), reply(rng)
        words = r.split()
        texts.append(p + r if rng.random() < 0.5 else p + " " + r)
        scores.append(
            2.0 * (sum(w in NICE for w in words) - sum(w in CURT for w in words)) / len(words)
        )
    rm_tok = byte_bpe_tokenizer(texts, vocab_size=420)
    rm_tok.padding_side = "right"
    reward_model = train_reward_model(rm_tok, texts, scores)

    args = GRPOConfig(
        **base_args(eval_strategy="steps", eval_steps=6),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=64,
        per_device_eval_batch_size=16,
        num_generations=8,
        num_generations_eval=4,
        max_completion_length=12,
        max_steps=12,
        learning_rate=1e-3,
        loss_type="bnpo",
        beta=0.05,
        sync_ref_model=True,
        ref_model_sync_steps=4,
        ref_model_mixup_alpha=0.5,
        reward_weights=[1.0, -0.3],
        seed=2,
    )
    return GRPOTrainer(
        model=on_disk(policy, tok),
        processing_class=tok,
        reward_funcs=[reward_model, wordiness],
        reward_processing_classes=[rm_tok, None],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts[:48]}),
        eval_dataset=Dataset.from_dict({"prompt": prompts[48:56]}),
    )


if __name__ == "__main__":
    build().train()
