"""An own advantage for every token: the task is a chain (count on in steps), each right token is worth its share, and a token is
credited with what comes from it on, less the mean of its group at the same place. An own term holds the weights near where they
began (L2 to the initial weights, divided by the accumulation as the trainer does with its own loss). The lowest block of a
GPT-NeoX stays frozen, the others have rates that grow with depth, RMSprop, four micro-batches per step."""

import random

import torch
from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer


class ChainTrainer(GRPOTrainer):
    pull = 0.05

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.start = {n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad}

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ids, mask = output["completion_ids"], output["completion_mask"].float()
        size = self.num_generations if self.model.training else self.num_generations_eval
        worth = torch.zeros_like(mask)
        for i, example in enumerate(inputs):
            gold = self.processing_class(example["answer"])["input_ids"] + [self.processing_class.eos_token_id]
            for t in range(min(len(gold), ids.size(1))):
                worth[i, t] = float(ids[i, t].item() == gold[t]) / len(gold)
        to_go = (worth * mask).flip(1).cumsum(1).flip(1)
        grouped, alive = to_go.view(-1, size, ids.size(1)), mask.view(-1, size, ids.size(1))
        mean = (grouped * alive).sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1)
        advantages = ((grouped - mean) * alive).view_as(mask)
        output["advantages"] = advantages / (advantages.square().sum() / mask.sum()).sqrt().clamp(min=1e-4)
        return output

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        unwrapped = self.accelerator.unwrap_model(model)
        drift = sum((p - self.start[n]).square().sum() for n, p in unwrapped.named_parameters() if n in self.start)
        return loss + self.pull * drift / (self.current_gradient_accumulation_steps if model.training else 1)


def right_share(completions, answer, **kwargs):
    """The share of right characters; the advantages use the same, token by token."""
    return [sum(x == y for x, y in zip(t, a)) / max(len(t), len(a), 1) for t, a in zip(completions, answer)]


def wrong(rng, answer):
    i = rng.randrange(len(answer))
    return answer[:i] + rng.choice("0123456789") + answer[i + 1 :]


def build():
    tok = char_tokenizer("0123456789+:", padding_side="left")
    model = tiny("gpt_neox", tok, hidden=64, layers=3)
    pairs = [(f"{a}+{b}:", "".join(str((a + k * b) % 10) for k in range(1, 6))) for a in range(10) for b in range(1, 10)]
    teach(model, half_right(tok, pairs, wrong, right=0.45, copies=16), steps=650, lr=3e-3, pad=tok.pad_token_id)
    blocks = model.gpt_neox.layers
    for p in [*model.gpt_neox.embed_in.parameters(), *blocks[0].parameters()]:
        p.requires_grad_(False)
    top = [*model.gpt_neox.final_layer_norm.parameters(), *model.get_output_embeddings().parameters()]
    optimizer = torch.optim.RMSprop(
        [
            {"params": list(blocks[1].parameters()), "lr": 2e-4},
            {"params": list(blocks[2].parameters()), "lr": 4e-4},
            {"params": top, "lr": 4e-4},
        ],
        alpha=0.95,
        eps=1e-6,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 3))
    random.Random(5).shuffle(pairs)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=12,
            gradient_accumulation_steps=4,
            num_generations=6,
            max_completion_length=8,
            max_steps=9,
            seed=2,
        )
    )
    return ChainTrainer(
        model, right_share, args=args, train_dataset=dataset, processing_class=tok, optimizers=(optimizer, scheduler)
    )
