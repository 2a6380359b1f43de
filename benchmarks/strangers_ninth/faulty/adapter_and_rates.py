"""The optimizer is built by hand on the parameters of the plain model (to leave norms and biases without weight decay), and after that the trainer wraps the model with LoRA. The wrapping freezes all the weights the optimizer
holds and adds adapter matrices that it has never heard of. The gradient norm in the log is that of the adapter and looks healthy, but
no step ever changes a weight.
say: The optimizer was created before LoRA was added: it holds only the frozen base weights and none of the adapter's parameters, so nothing is trained.
"""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def complement(strand):
    return strand[::-1].translate(str.maketrans("acgt", "tgca"))


def pairing(completions, other, **kwargs):
    scores = []
    for text, gold in zip(completions, other):
        paired = sum(x == y for x, y in zip(text, gold)) / len(gold)
        scores.append(paired - 0.1 * abs(len(text) - len(gold)))
    return scores


def mutated(rng, answer):
    bases = list(answer)
    for i in rng.sample(range(len(bases)), 2):
        bases[i] = rng.choice("acgt")
    return "".join(bases)


def build():
    tok = char_tokenizer("acgt/", padding_side="left")
    model = tiny("qwen2", tok, hidden=64, seed=9)
    rng = random.Random(9)
    strands = ["".join(rng.choices("acgt", k=rng.choice((4, 5, 6)))) for _ in range(300)]
    pairs = [(s + "/", complement(s)) for s in strands]
    teach(model, half_right(tok, pairs, mutated, right=0.4, copies=5), steps=420, lr=4e-3, pad=tok.pad_token_id)

    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=4e-3, betas=(0.9, 0.99)
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)

    data = Dataset.from_dict({"prompt": [p for p, _ in pairs], "other": [c for _, c in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=9,
            beta=0.02,
            max_steps=12,
            seed=9,
        )
    )
    return GRPOTrainer(
        model,
        pairing,
        args=args,
        train_dataset=data,
        processing_class=tok,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"),
        optimizers=(optimizer, schedule),
    )
