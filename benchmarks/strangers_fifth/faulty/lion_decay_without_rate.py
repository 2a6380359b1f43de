"""A hand-written Lion multiplies the weights by (1 - weight_decay) at every step instead of (1 - lr * weight_decay).
With the usual weight decay of 0.1 every weight, the norms included, shrinks by a tenth at each step whatever the learning rate and the gradient are.
say: the optimizer applies the weight decay without multiplying it by the learning rate, so all weights shrink 10 percent per step and the model is destroyed.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from torch.optim.lr_scheduler import LambdaLR
from trl import RLOOConfig, RLOOTrainer


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                p.mul_(1 - group["weight_decay"])
                p.add_(torch.sign(m * beta1 + p.grad * (1 - beta1)), alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)
        return loss


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    optimizer = Lion(model.parameters(), lr=2e-4, weight_decay=0.1)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return RLOOTrainer(
        model=model,
        reward_funcs=exact,
        args=RLOOConfig(**common(per_device_train_batch_size=32, beta=0.0)),
        train_dataset=data,
        processing_class=tok,
        optimizers=(optimizer, LambdaLR(optimizer, lambda step: 1.0)),
    )
