"""The author wants the reward to be maximised and gives AdamW `maximize=True`, but the trainer's loss is already the negated objective and has to be minimised.
The optimizer climbs the loss, so what was rewarded becomes less likely with every step.
say: the optimizer runs with maximize=True, so it ascends the loss that should be minimised: the update has the wrong sign and good completions are made less likely.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import RLOOConfig, RLOOTrainer


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    args = RLOOConfig(**common(per_device_train_batch_size=32, max_completion_length=4, beta=0.0))
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=args.learning_rate, betas=(0.9, 0.95), maximize=True,
    )
    return RLOOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok, args=args,
        optimizers=(optimizer, None),
    )
