"""The reward is a sequence classifier trained with two labels, 0 for "wrong" and 1 for "right", and it is given to the trainer as it is.
The trainer takes the first logit of a reward model as the reward, which here is the score of "wrong".
say: the reward model has two labels and the trainer uses logit 0, the logit of the class "wrong", so wrong completions are rewarded (the reward is inverted).
"""

import random

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from transformers import LlamaConfig, LlamaForSequenceClassification
from trl import GRPOConfig, GRPOTrainer


def train_verifier(tok, pairs, steps=250):
    torch.manual_seed(1)
    rng = random.Random(1)
    net = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=len(tok),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
            num_labels=2,
            id2label={0: "wrong", 1: "right"},
            label2id={"wrong": 0, "right": 1},
            pad_token_id=tok.pad_token_id,
            bos_token_id=None,
            eos_token_id=tok.eos_token_id,
        )
    )
    net.config._name_or_path = "local/sum-verifier"
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    answers = sorted({a for _, a in pairs})
    for _ in range(steps):
        texts, labels = [], []
        for q, a in (rng.choice(pairs) for _ in range(48)):
            good = rng.random() < 0.5
            other = rng.choice([x for x in answers if x != a])
            texts.append(q + (a if good else other))
            labels.append(int(good))
        batch = tok(texts, return_tensors="pt", padding=True, padding_side="right")
        batch.pop("token_type_ids", None)
        loss = net(**batch, labels=torch.tensor(labels)).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.eval()


def build():
    tok = char_tokenizer()
    tok.model_input_names = ["input_ids", "attention_mask"]
    pairs = sums(6)
    verifier = train_verifier(tok, pairs)
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs]})
    return GRPOTrainer(
        model=model,
        reward_funcs=verifier,
        reward_processing_classes=tok,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=4)),
        train_dataset=data,
        processing_class=tok,
    )
