"""The optimizer is made from model.parameters() before the trainer wraps the model with LoRA, so it holds the base weights, which
LoRA freezes, and none of the adapter's. Gradients flow into the adapter and the gradient norm looks normal, but no weight ever
changes and the reward stays where it was.
say: the optimizer passed to the trainer was built before peft_config was applied, so the trainable LoRA parameters are not in it (only frozen base weights are) and nothing is updated.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, half_right, one_letter_wrong, teach_rows, tiny_llama, words
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def exact(completions, answer, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, answer)]


def parameter_groups(model, weight_decay):
    """No decay for norms."""
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    others = [p for n, p in model.named_parameters() if "norm" not in n]
    return [{"params": others, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    pairs = [(f"next {w} is ", "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in w)) for w in words(120, seed=5)]
    teach_rows(model, half_right(tok, pairs, one_letter_wrong, right=0.45), tok.pad_token_id, steps=350)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=3e-3, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 40))
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=3e-3, max_steps=10))
    return GRPOTrainer(
        model,
        exact,
        args=args,
        train_dataset=dataset,
        processing_class=tok,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        optimizers=(optimizer, scheduler),
    )
