"""The optimizer is made from the model's parameters first, and afterwards two tags are added to the tokenizer and `resize_token_embeddings` puts a new, larger output head into the model.
The optimizer keeps the head that was replaced, so the head of the model in use gets gradients but is never updated, the rows of the new tags included.
say: the lm_head (output head) parameter of the model is not in the optimizer, because the optimizer was built before resize_token_embeddings replaced it, so it never changes.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def tagged(completions, answer, **kwargs):
    """The sum counts with or without the tags around it."""
    scores = []
    for text, gold in zip(completions, answer):
        body = text.replace("<ans>", "").replace("</ans>", "").strip()
        scores.append(float(body == gold))
    return scores


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    tok.add_tokens(["<ans>", "</ans>"])
    model.resize_token_embeddings(len(tok))
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model,
        reward_funcs=tagged,
        args=GRPOConfig(**common(per_device_train_batch_size=32)),
        train_dataset=data,
        processing_class=tok,
        optimizers=(optimizer, schedule),
    )
