"""DoRA adapters on a Mistral model under bf16 autocast with gradient checkpointing; the embedding stays frozen with everything
else of the base. A KL term against the base (adapter switched off). Different rates for the A and B matrices in the manner of
LoRA+, set in create_optimizer of a subclass; warm-up over three of ten steps. Dr. GRPO's loss without scaling of the rewards,
two micro-batches per step. The task: count how often a letter stands in a word."""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, on_disk, teach, tiny
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


class LoraPlusTrainer(GRPOTrainer):
    ratio = 4.0

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            fast, slow = [], []
            for name, p in self.model.named_parameters():
                if p.requires_grad:
                    (fast if "lora_B" in name else slow).append(p)
            lr = self.args.learning_rate
            self.optimizer = torch.optim.AdamW(
                [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * self.ratio}], weight_decay=0.0, betas=(0.9, 0.98)
            )
        return self.optimizer


def counted(completions, answer, **kwargs):
    return [2.0 if text == gold else -1.0 if not text.isdigit() else 0.0 for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer("abcd012345? :in", padding_side="left")
    model = tiny("mistral", tok, hidden=64)
    rng = random.Random(4)
    items = set()
    while len(items) < 240:
        word = "".join(rng.choice("abcd") for _ in range(5))
        letter = rng.choice("abcd")
        items.add((f"{letter} in {word}?", str(word.count(letter))))
    items = sorted(items)
    rng.shuffle(items)
    wrong = lambda r, gold: str(min(5, max(0, int(gold) + r.choice([-1, 1]))))
    teach(model, half_right(tok, items, wrong, right=0.65), steps=350, lr=3e-3, pad=tok.pad_token_id)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in items], "answer": [a for _, a in items]})
    args = GRPOConfig(
        **{
            **base_args(
                beta=0.01,
                loss_type="dr_grpo",
                scale_rewards="none",
                per_device_train_batch_size=32,
                gradient_accumulation_steps=2,
                num_generations=8,
                max_completion_length=4,
                learning_rate=1e-3,
                warmup_steps=3,
                lr_scheduler_type="cosine",
                gradient_checkpointing_kwargs={"use_reentrant": False},
                max_steps=10,
                seed=21,
            ),
            "bf16": True,
            "gradient_checkpointing": True,
        }
    )
    lora = LoraConfig(r=8, lora_alpha=16, use_dora=True, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    return LoraPlusTrainer(
        on_disk(model, tok), counted, args=args, train_dataset=dataset, processing_class=tok, peft_config=lora
    )
