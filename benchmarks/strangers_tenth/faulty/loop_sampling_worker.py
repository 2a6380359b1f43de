"""A learner and a sampling worker, as in a setup with an inference server, in one process.

After every step the learner writes its weights to a checkpoint folder and the worker picks the newest one up before it samples. Small
Llama, "first and last letter of the word", leave-one-out advantages.
"""

import random
from pathlib import Path

import flatline
import torch
from kit import folder, letters, mixed, sft, small
from safetensors.torch import load_file, save_file

STEPS, GROUP, PROMPTS, ROOM = 12, 6, 10, 5


class Worker:
    """Samples with its own copy of the model."""

    def __init__(self, model, tok, inbox):
        self.model, self.tok, self.inbox = model.eval(), tok, Path(inbox)

    def refresh(self):
        newest = max(self.inbox.glob("step-*.safetensors"), default=None)
        if newest is not None:
            self.model.load_state_dict(load_file(newest), strict=False)

    @torch.no_grad()
    def sample(self, prompts):
        batch = self.tok(prompts, return_tensors="pt", padding=True)
        full = self.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=ROOM,
            pad_token_id=self.tok.pad_token_id,
        )
        return batch["attention_mask"], full


def publish(learner, optimizer, inbox, step):
    """One file for the weights; the names tell policy and optimizer state apart."""
    bundle = {f"policy.{name}": weight.detach().clone() for name, weight in learner.state_dict().items()}
    bundle["optimizer.lr"] = torch.tensor(optimizer.param_groups[0]["lr"])
    save_file(bundle, Path(inbox) / f"step-{step:04d}.safetensors")


def spoil(rng, answer):
    return "".join(rng.choice("abcdefghij") if rng.random() < 0.5 else ch for ch in answer)


def train(run_dir):
    torch.manual_seed(2)
    rng = random.Random(2)
    tok = letters("abcdefghij>")
    made = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 6))) for _ in range(250)]
    pairs = [(w + ">", w[0] + w[-1]) for w in made]
    learner = small("llama", tok, seed=30)
    sft(learner, tok, mixed(pairs, spoil, share=0.4, times=5), steps=300)
    copy_of_start = small("llama", tok, seed=30)
    copy_of_start.load_state_dict(learner.state_dict())
    inbox = folder("inbox-")
    worker = Worker(copy_of_start, tok, inbox)
    learner.train()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=5e-4, weight_decay=0.0)

    with flatline.watch(learner, optimizer, run_dir):
        for step in range(STEPS):
            worker.refresh()
            picked = rng.sample(pairs, PROMPTS)
            asked = [p for p, _ in picked for _ in range(GROUP)]
            gold = [a for _, a in picked for _ in range(GROUP)]
            prompt_mask, full = worker.sample(asked)
            answer = full[:, prompt_mask.shape[1] :]
            ends = (answer == tok.eos_token_id).long().cumsum(1)
            mask = ((ends == 0) | ((ends == 1) & (answer == tok.eos_token_id))).long()
            texts = tok.batch_decode(answer, skip_special_tokens=True)
            rewards = torch.tensor([1.0 if t.strip() == g else 0.0 for t, g in zip(texts, gold)]).view(PROMPTS, GROUP)
            others = (rewards.sum(1, keepdim=True) - rewards) / (GROUP - 1)
            advantages = (rewards - others).flatten()[:, None]
            attention = torch.cat([prompt_mask, mask], 1)
            width = answer.shape[1]
            logits = learner(input_ids=full, attention_mask=attention).logits[:, -width - 1 : -1]
            logps = torch.log_softmax(logits.float(), -1).gather(-1, answer.unsqueeze(-1)).squeeze(-1)
            loss = -(logps * advantages * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            optimizer.step()
            publish(learner, optimizer, inbox, step)
            print(f"step {step} reward {rewards.mean():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    train(folder("watch-"))
