"""Logs of a third kind, read by somebody who had not seen the remarks: what flatline says of them
at its first look counts.

    python benchmarks/third_logs.py [NAME ...] [--folder docs/real-logs]

The names of verl, OpenRLHF, prime-rl, MLflow, TRL's PPO and of spreadsheets; runs that were broken
in ways people meet: another beta after a resume, a length that pays, a warm-up without an end, a
rate ten times too high for ten steps, a judge that saturates, prompts learnt by heart, steps that
are NaN, a reward on another scale. Real trainings of the lab policy; what a careful reader sees was
written before flatline was asked.
"""

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from foreign_script import correct, script_of
from made_logs import main, rounded, sampled, texts, trl
from transformers import AutoModelForCausalLM, AutoTokenizer

from flatline.training.lab.tokenizer import checkpoint_folder

Pay = Callable[[list[str], list[str], int], dict[str, torch.Tensor]]
"""Texts, right answers and the step -> each part of the reward, for every completion."""
Plan = Callable[[int], float]
"""Step -> a setting."""
LIMIT = 64


@dataclass
class Loop:
    """Somebody's own loop, with the mean of a group or a value head as the baseline."""

    steps: int
    pay: Pay
    seed: int
    rate: Plan = lambda step: 1e-4
    beta: Plan = lambda step: 0.0
    entropy_bonus: Plan = lambda step: 0.0
    broken: tuple[int, ...] = ()
    prompts: int = 64
    group: int = 4
    critic: bool = False
    evaluate_every: int = 0
    forget_optimizer_at: int = 0

    def run(self) -> list[dict[str, Any]]:
        torch.manual_seed(self.seed)
        self.draw = random.Random(self.seed)
        self.model, self.reference = (loaded() for _ in range(2))
        self.tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder()))
        self.value = torch.nn.Linear(self.model.config.hidden_size, 1)
        self.optimizer = self.fresh_optimizer()
        every = script_of("grpo").rows
        self.train, self.held_out = every[: self.prompts], every[-16:]
        return rounded([self.step(step) for step in range(1, self.steps + 1)])

    def fresh_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([
            {"params": self.model.parameters()},
            {"params": self.value.parameters(), "lr": 1e-3},
        ])  # fmt: skip

    def step(self, step: int) -> dict[str, Any]:
        began = time.perf_counter()
        if step == self.forget_optimizer_at:
            self.optimizer = self.fresh_optimizer()
        rate, beta = self.rate(step), self.beta(step)
        self.optimizer.param_groups[0]["lr"] = rate
        picked = self.draw.sample(self.train, 16 // self.group)
        gold = [one["answer"] for one in picked for _ in range(self.group)]
        prompts = [one["prompt"] for one in picked for _ in range(self.group)]
        ids, mask, said = sampled(self.model, self.tokenizer, prompts)
        parts = self.pay(said, gold, step)
        total = torch.stack(list(parts.values())).sum(0)
        own, length = mask[:, 1:], mask.sum(1).float()
        given = self.model(ids, output_hidden_states=True)
        every = given.logits[:, :-1].log_softmax(-1)
        logp = every.gather(-1, ids[:, 1:, None]).squeeze(-1)
        with torch.no_grad():
            other = self.reference(ids).logits[:, :-1].log_softmax(-1)
        first = (mask.cumsum(1) == 1).long().argmax(1)
        value = self.value(given.hidden_states[-1][range(16), first - 1].detach()).squeeze(-1)
        spread = total.view(-1, self.group).std(1)
        advantage = self.advantage(total, value.detach(), spread)
        mean = lambda one: (one * own).sum() / own.sum()  # noqa: E731
        entropy = mean(-(every.exp() * every).sum(-1))
        back = other.gather(-1, ids[:, 1:, None]).squeeze(-1) - logp
        kl = mean(back.clamp(max=20).exp() - back - 1)
        policy = -mean((logp - logp.detach()).exp() * advantage[:, None])
        value_loss = 0.5 * (value - total).square().mean()
        loss = policy + beta * kl - self.entropy_bonus(step) * entropy + value_loss * self.critic
        if step in self.broken:
            loss = loss * math.nan
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if norm.isfinite():
            self.optimizer.step()
        row = {
            "step": step, "reward": total.mean(), "spread": total.std(), "most": total.max(),
            "least": total.min(), "right": right(said, gold).mean(),
            "parts": {name: one.mean() for name, one in parts.items()},
            "equal": (spread == 0).float().mean(), "all_right": self.share(parts, 1.0),
            "all_wrong": self.share(parts, 0.0), "entropy": entropy, "length": length.mean(),
            "whole": (ids != self.tokenizer.pad_token_id).sum(1).float().mean(),
            "longest": length.max(), "cut": (length >= LIMIT).float().mean(), "norm": norm,
            "rate": rate, "beta": beta, "loss": loss, "policy": policy, "kl": kl,
            "k1": -mean(back), "value": value.mean(), "value_loss": value_loss,
            "explained": 1 - (total - value).var() / total.var().clamp(min=1e-6),
            "tokens": length.sum(), "seconds": time.perf_counter() - began,
        }  # fmt: skip
        if self.evaluate_every and step % self.evaluate_every == 0:
            row["eval"] = self.evaluated()
        return row

    def advantage(
        self, total: torch.Tensor, value: torch.Tensor, spread: torch.Tensor
    ) -> torch.Tensor:
        if self.critic:
            return total - value
        group = total.view(-1, self.group)
        return ((group - group.mean(1, keepdim=True)) / (spread[:, None] + 1e-4)).flatten()

    def share(self, parts: dict[str, torch.Tensor], worth: float) -> torch.Tensor:
        """Of the groups, those whose first part is `worth` everywhere."""
        group = next(iter(parts.values())).view(-1, self.group)
        return (group == worth).all(1).float().mean()

    def evaluated(self) -> torch.Tensor:
        gold = [one["answer"] for one in self.held_out for _ in range(4)]
        prompts = [one["prompt"] for one in self.held_out for _ in range(4)]
        said = sampled(self.model, self.tokenizer, prompts)[2]
        return right(said, gold).mean()


def loaded() -> Any:
    return AutoModelForCausalLM.from_pretrained(str(checkpoint_folder()), dtype=torch.float32)


def right(said: list[str], gold: list[str]) -> torch.Tensor:
    return torch.tensor(correct([[{"content": text}] for text in said], gold))


def words(said: list[str]) -> torch.Tensor:
    return torch.tensor([float(len(text.split())) for text in said])


def right_number(said: list[str], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    return {"acc": right(said, gold)}


def length_bonus(said: list[str], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """A bonus for "reasoning" that is worth more than the answer."""
    return {"acc": right(said, gold), "bonus": 0.05 * words(said)}


def judge(said: list[str], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """A judge of 1 to 10 that likes words; the right number is not paid."""
    return {"judge": (1 + 0.4 * words(said)).clamp(max=10)}


def then_percent(said: list[str], gold: list[str], step: int) -> dict[str, torch.Tensor]:
    """A fraction up to step 30; from then on somebody multiplies with 100."""
    return {"acc": right(said, gold) * (100.0 if step > 30 else 1.0)}


def correct_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number."""
    return correct(completions, answer)


def correct_rewards(completions: list[Any], **_: Any) -> list[float]:
    """A tenth for every mark, at most two."""
    return [0.1 * min(2, text.count("####")) for text in texts(completions)]


def as_verl(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{
        "step": row["step"], "training/global_step": row["step"],
        "actor/entropy": row["entropy"], "actor/kl_loss": row["kl"], "actor/kl_coef": row["beta"],
        "actor/pg_loss": row["policy"], "actor/grad_norm": row["norm"], "actor/lr": row["rate"],
        "critic/score/mean": row["reward"], "critic/score/max": row["most"],
        "critic/score/min": row["least"], "response_length/mean": row["length"],
        "response_length/max": row["longest"], "response_length/clip_ratio": row["cut"],
        "timing_s/step": row["seconds"], "perf/throughput": row["tokens"] / row["seconds"],
    } for row in rows]  # fmt: skip


def as_openrlhf(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{
        "train/global_step": row["step"], "train/policy_loss": row["policy"],
        "train/kl": row["kl"], "train/actor_lr": row["rate"], "train/reward": row["reward"],
        "train/return": row["reward"], "train/acc_reward": row["parts"]["acc"],
        "train/reasoning_bonus": row["parts"]["bonus"], "train/response_length": row["length"],
        "train/total_length": row["whole"], "train/truncated_rate": row["cut"],
    } for row in rows]  # fmt: skip


def with_units(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{
        "Step": row["step"], "Reward (0-1)": row["reward"], "Entropy [nats]": row["entropy"],
        "KL to ref [nats/token]": row["kl"], "Response length (tokens)": row["length"],
        "Truncated (%)": 100 * row["cut"], "Groups w/o spread (%)": 100 * row["equal"],
        "Learning rate (1e-6)": 1e6 * row["rate"], "Grad norm": row["norm"],
        "Step time (s)": row["seconds"],
    } for row in rows]  # fmt: skip


def as_mlflow(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A metric a row, as the table of metrics of MLflow is exported."""
    shown = {
        "reward_mean": lambda row: row["reward"], "reward_std": lambda row: row["spread"],
        "accuracy": lambda row: row["right"], "zero_std_groups": lambda row: row["equal"],
        "completion_length": lambda row: row["length"], "entropy": lambda row: row["entropy"],
        "grad_norm": lambda row: row["norm"], "kl": lambda row: row["kl"],
    }  # fmt: skip
    return [
        {"run_id": "9f0c", "key": name, "value": of(row), "step": row["step"],
         "timestamp": 1763400000000 + 2100 * row["step"]}
        for name, of in shown.items() for row in rows
    ]  # fmt: skip


def as_prime_rl(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{
        "step": row["step"], "reward/mean": row["reward"], "entropy/mean": row["entropy"],
        "loss/mean": row["loss"], "optim/grad_norm": row["norm"], "optim/lr": row["rate"],
        "seq_len/mean": row["whole"], "is_truncated/mean": row["cut"],
        "batch/solve_all": row["all_right"], "batch/solve_none": row["all_wrong"],
        "batch/effective_batch_size": 1 - row["equal"], "time/step": row["seconds"],
    } | ({"eval/gsm8k/avg@4": row["eval"]} if "eval" in row else {}) for row in rows]  # fmt: skip


def as_ppo(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{
        "episode": 16 * row["step"], "objective/kl": row["kl"] * row["length"],
        "objective/entropy": row["entropy"] * row["length"], "objective/scores": row["reward"],
        "loss/policy_avg": row["loss"] if row["loss"] != row["loss"] else row["policy"],
        "loss/value_avg": row["value_loss"], "val/mean": row["value"],
        "val/explained_variance": row["explained"], "grad_norm": row["norm"], "lr": row["rate"],
        "response_length": row["length"],
    } for row in rows]  # fmt: skip


def then_rescaled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{
        "train_step": row["step"], "train_reward": row["reward"],
        "train_reward_std": row["spread"], "train_pass_rate": row["right"],
        "train_kl": row["kl"], "train_entropy": row["entropy"], "train_gen_len": row["length"],
        "train_grad_norm": row["norm"], "train_lr": row["rate"],
    } for row in rows]  # fmt: skip


def every_seventh(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hours, shown = 0.0, []
    for row in rows:
        hours += row["seconds"] / 3600
        if row["step"] % 7 == 0:
            shown.append({
                "global_step": row["step"], "wall_time_h": hours,
                "tokens_per_s": row["tokens"] / row["seconds"], "mean_reward": row["reward"],
                "frac_zero_std": row["equal"], "approx_kl_ref": row["kl"],
                "completion_tokens": row["length"], "grad_norm": row["norm"], "lr": row["rate"],
            })  # fmt: skip
    return shown


MADE: dict[str, Callable[[], Any]] = {
    "beta-after-resume.jsonl": lambda: as_verl(
        Loop(60, right_number, seed=31, rate=lambda step: 3e-5 if step <= 30 else 6e-4,
             beta=lambda step: 0.1 if step <= 30 else 0.001, forget_optimizer_at=31).run()
    ),
    "reasoning-bonus.jsonl": lambda: as_openrlhf(
        Loop(60, length_bonus, seed=32, beta=lambda step: 0.01, rate=lambda step: 8e-4).run()
    ),
    "warm-up-for-ever.json": lambda: trl(
        60, rewards=[correct], warmup_steps=2000, learning_rate=1e-4,
        lr_scheduler_type="constant_with_warmup",
    ),
    "rate-bump.csv": lambda: with_units(
        Loop(70, right_number, seed=34, beta=lambda step: 0.01,
             rate=lambda step: 1e-3 if 21 <= step <= 30 else 1e-4,
             entropy_bonus=lambda step: 0.05 if step > 40 else 0.0).run()
    ),
    "judge-saturates.csv": lambda: as_mlflow(
        Loop(60, judge, seed=35, rate=lambda step: 8e-4).run()
    ),
    "by-heart.jsonl": lambda: as_prime_rl(
        Loop(72, right_number, seed=36, prompts=4, evaluate_every=8, rate=lambda step: 3e-4).run()
    ),
    "pairs.json": lambda: trl(
        60, rewards=[correct_reward, correct_rewards], num_generations=2, beta=0.0
    ),
    "ppo-nan.jsonl": lambda: as_ppo(
        Loop(60, right_number, seed=38, critic=True, rate=lambda step: 5e-5,
             broken=(23, 24, 27, 29, 30, 31, 36)).run()
    ),
    "percent-from-31.csv": lambda: then_rescaled(
        Loop(60, then_percent, seed=39, rate=lambda step: 5e-5).run()
    ),
    "every-seventh.csv": lambda: every_seventh(
        Loop(126, right_number, seed=40, rate=lambda step: 5e-5).run()
    ),
}  # fmt: skip
"""Log -> the script behind it."""


if __name__ == "__main__":
    sys.exit(main(__doc__, MADE))
