"""The author builds the learning rate schedule by hand and takes the number of steps as prompts divided by the batch size, but the batch size of the trainer counts completions, eight for each prompt.
The run has eight times as many steps as the schedule, whose learning rate reaches zero after the second step and stays there.
say: the learning rate schedule is too short (it ends after 2 of the 12 steps because num_generations was not counted), so the learning rate is 0 for most of the run and nothing is learned.
"""

import math

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from transformers import get_linear_schedule_with_warmup
from trl import RLOOConfig, RLOOTrainer


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    pairs = pairs[::4][:24]
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    args = RLOOConfig(**common(max_steps=-1, num_train_epochs=1, max_completion_length=4, beta=0.0))
    total = math.ceil(len(data) / (args.per_device_train_batch_size * args.gradient_accumulation_steps))
    total = int(total * args.num_train_epochs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=total)
    return RLOOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok, args=args,
        optimizers=(optimizer, schedule),
    )
