"""Logs of other shapes, made to be read once: what flatline says of them at its first look counts.

    python benchmarks/fresh_logs.py [NAME ...] [--folder docs/real-logs]

Resumed and restarted runs, rows of ten steps, twelve rows, rewards below 0 and up to 100, reward
functions without a meaning in their names, the formats of other trainers. Real trainings of the
lab policy, like those of `made_logs.py`; what a careful reader sees was written before flatline was
asked.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from foreign_script import ASKED, Reward, Script, brief, build, correct, script_of
from made_logs import StopAt, main, rounded, sampled, texts, trl
from transformers import AutoModelForCausalLM, AutoTokenizer

from flatline.training.lab.tokenizer import checkpoint_folder

Pay = Callable[[list[Any], list[str], int], dict[str, torch.Tensor]]
"""Completions, right answers and the step -> each part of the reward, for every completion."""


def loop(steps: int, pay: Pay, *, rate: float = 1e-4, seed: int) -> list[dict[str, Any]]:
    """REINFORCE with the mean of a group as baseline; the reward is the sum of what `pay` gives."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    folder = str(checkpoint_folder())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    problems, rows = script_of("grpo").rows, []
    for step in range(1, steps + 1):
        picked = draw.sample(problems, 4)
        gold = [one["answer"] for one in picked for _ in range(4)]
        ids, mask, said = sampled(
            model, tokenizer, [one["prompt"] for one in picked for _ in gold[:4]]
        )
        parts = pay([[{"content": text}] for text in said], gold, step)
        total = torch.stack(list(parts.values())).sum(0)
        group = total.view(4, 4)
        spread = group.std(1)
        advantage = ((group - group.mean(1, keepdim=True)) / (spread[:, None] + 1e-4)).flatten()
        every = model(ids).logits[:, :-1].log_softmax(-1)
        logp, own = every.gather(-1, ids[:, 1:, None]).squeeze(-1), mask[:, 1:]
        loss = -(logp * own * advantage[:, None]).sum() / own.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        length = own.sum(1).float()
        entropy = (-(every.exp() * every).sum(-1) * own).sum() / own.sum()
        rows.append({
            "step": step, "reward": total.mean(), "most": total.max(), "least": total.min(),
            "parts": {name: one.mean() for name, one in parts.items()},
            "equal": (spread == 0).float().mean(), "entropy": entropy, "length": length.mean(),
            "longest": length.max(), "cut": (length >= 64).float().mean(), "norm": norm,
            "rate": rate, "loss": loss,
        })  # fmt: skip
    return rounded(rows)


def plus_or_minus(completions: list[Any], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """1 for the right number, -1 for any other."""
    return {"score": 2 * torch.tensor(correct(completions, gold)) - 1}


def percent(completions: list[Any], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """Up to 100 points."""
    return {
        "acc": 80 * torch.tensor(correct(completions, gold)),
        "form": 20 * torch.tensor([float("####" in text) for text in texts(completions)]),
    }


def with_a_coin(completions: list[Any], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """A judge that throws a coin beside a half for the right number."""
    return {
        "r0": 0.5 * torch.tensor(correct(completions, gold)),
        "Ω judge #2": torch.randint(0, 2, (len(completions),)).float(),
    }


def outage(completions: list[Any], gold: list[str], step: int) -> dict[str, torch.Tensor]:
    """The service that pays is down from step 31 on."""
    return {"acc": torch.tensor(correct(completions, gold)) * (step <= 30)}


def close_to_twenty(completions: list[Any], **_: Any) -> list[float]:
    """Minus a tenth of what the words are away from twenty."""
    return [-0.1 * abs(len(text.split()) - 20) for text in texts(completions)]


def as_verl(rows: list[dict[str, Any]]) -> list[str]:
    """What verl prints."""
    lines = ["(TaskRunner pid=4711) Size of train dataloader: 16, Size of val dataloader: 1"]
    for row in rows:
        told = {
            "step": row["step"], "actor/entropy": row["entropy"], "actor/pg_loss": row["loss"],
            "actor/grad_norm": row["norm"], "actor/lr": row["rate"],
            "training/global_step": row["step"], "critic/score/mean": row["reward"],
            "critic/score/max": row["most"], "critic/score/min": row["least"],
            "critic/rewards/mean": row["reward"], "response_length/mean": row["length"],
            "response_length/max": row["longest"], "response_length/clip_ratio": row["cut"],
        }  # fmt: skip
        lines.append("(TaskRunner pid=4711) " + " - ".join(f"{n}:{v}" for n, v in told.items()))
        lines.append(f"(TaskRunner pid=4711) Training Progress: {row['step']}/{len(rows)}")
    return lines


def every_ten(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means of ten steps, in somebody's own words."""
    mean = lambda some, of: sum(map(of, some)) / len(some)  # noqa: E731
    return [{
        "Step": some[-1]["step"],
        "Mean Reward": mean(some, lambda row: row["reward"]),
        "Accuracy Points": mean(some, lambda row: row["parts"]["acc"]),
        "Form Points": mean(some, lambda row: row["parts"]["form"]),
        "Response Length": mean(some, lambda row: row["length"]),
        "Entropy": mean(some, lambda row: row["entropy"]),
        "LR": some[-1]["rate"],
    } for some in (rows[at : at + 10] for at in range(0, len(rows), 10))]  # fmt: skip


def nested(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Somebody's own JSON: rows under a key, numbers in groups."""
    return {"config": {"lr": 1e-4, "group": 4}, "history": [{
        "iteration": row["step"],
        "train": {"reward": row["reward"], "rewards/r0": row["parts"]["r0"],
                  "rewards/Ω judge #2": row["parts"]["Ω judge #2"], "entropy": row["entropy"],
                  "response_length": row["length"], "grad_norm": row["norm"]},
    } for row in rows]}  # fmt: skip


def as_nemo(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The names of NeMo-RL, a row a line."""
    return [{
        "step": row["step"], "train/reward": row["reward"], "train/loss": row["loss"],
        "train/grad_norm": row["norm"], "train/lr": row["rate"],
        "train/approx_entropy": row["entropy"],
        "train/mean_gen_tokens_per_sample": row["length"],
    } for row in rows]  # fmt: skip


def resumed(
    steps: int, *, stop: int, rewards: list[Reward], **asked: Any
) -> list[list[dict[str, Any]]]:
    """Rows of a run that ended at `stop`, and of the one that went on from its last checkpoint."""
    script = script_of("grpo")
    script.asked = ASKED | {"max_steps": steps, "save_strategy": "steps", "save_steps": 10} | asked
    script.rewards, script.callbacks = rewards, [StopAt(stop)]
    first = build(script)
    first.train()
    folder = Path(first.args.output_dir) / f"checkpoint-{stop // 10 * 10}"
    kept = [row for row in first.state.log_history if "train_runtime" not in row]
    (folder / "rng_state.pth").unlink()  # another machine: what is sampled is not the same
    second = build(Script(**{**vars(script), "callbacks": [], "asked": script.asked | {"seed": 8}}))
    second.train(resume_from_checkpoint=str(folder))
    again = [row for row in second.state.log_history if "train_runtime" not in row]
    return [kept, [row for row in again if row["step"] > stop // 10 * 10]]


def printed(parts: list[list[dict[str, Any]]]) -> list[str]:
    """What TRL prints, of a job that was started twice into one file: no step, only the epoch."""
    lines = []
    for rows in parts:
        lines.append("Loading weights: 100%|##########| 26/26")
        for row in rows:
            shown = {name: str(value) for name, value in row.items() if name != "step"}
            lines.append(repr(shown))
    return lines


def as_skyrl(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The names of SkyRL, a row a line."""
    return [{
        "trainer/global_step": row["step"], "reward/avg_raw_reward": row["reward"],
        "policy/policy_entropy": row["entropy"], "policy/raw_grad_norm": row["norm"],
        "policy/policy_lr": row["rate"], "policy/final_loss": row["loss"],
        "generate/avg_num_tokens": row["length"],
    } for row in rows]  # fmt: skip


def as_sheet(rows: list[dict[str, Any]]) -> list[str]:
    """A table with tabs, every second step, under names of somebody's own."""
    names = {"step": "iter", "reward": "avg_reward", "length": "mean_response_length",
             "entropy": "policy_entropy", "norm": "gnorm", "cut": "truncation_rate"}  # fmt: skip
    shown = [[str(row[name]) for name in names] for row in rows[1::2]]
    return ["\t".join(line) for line in [list(names.values()), *shown]]


def no_better(completions: list[Any], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """Minus 5 for a wrong number, 0 for the right one."""
    return {"score": 5 * torch.tensor(correct(completions, gold)) - 5}


def right_number(completions: list[Any], gold: list[str], _: int) -> dict[str, torch.Tensor]:
    """1 for the right number."""
    return {"score": torch.tensor(correct(completions, gold))}


def wordy(completions: list[Any], **_: Any) -> list[float]:
    """A twentieth for every word."""
    return [0.05 * len(text.split()) for text in texts(completions)]


def terse(completions: list[Any], **_: Any) -> list[float]:
    """Minus a twentieth for every word but the first ten."""
    return [-0.05 * max(0, len(text.split()) - 10) for text in texts(completions)]


MADE: dict[str, Callable[[], Any]] = {
    "verl-plus-minus.log": lambda: as_verl(loop(45, plus_or_minus, seed=11)),
    "points-every-ten.csv": lambda: every_ten(loop(160, percent, rate=3e-5, seed=12)),
    "coin-judge.json": lambda: nested(loop(50, with_a_coin, seed=13)),
    "outage.jsonl": lambda: as_nemo(loop(50, outage, seed=14)),
    "twelve-rows.json": lambda: trl(60, logging_steps=5, beta=0.0, loss_type="dapo"),
    "resumed-appended.jsonl": lambda: [
        row for part in resumed(46, stop=34, rewards=[correct, brief]) for row in part
    ],
    "started-twice.txt": lambda: printed(
        resumed(40, stop=27, rewards=[close_to_twenty], learning_rate=5e-4, beta=0.0)
    ),
    "too-few-words.json": lambda: trl(
        50, rewards=[close_to_twenty, correct], lora=False, learning_rate=3e-5, beta=0.1
    ),
    # Made after what these showed was mended.
    "skyrl-too-fast.jsonl": lambda: as_skyrl(loop(40, right_number, rate=2e-3, seed=21)),
    "never-above-zero.tsv": lambda: as_sheet(loop(80, no_better, rate=1e-4, seed=22)),
    "against-each-other.json": lambda: trl(40, rewards=[wordy, terse, correct], beta=0.0),
    "cut-in-the-middle.txt": lambda: printed(
        [trl(40, max_completion_length=24, learning_rate=5e-4)["log_history"]]
    ),
    "resumed-twice.jsonl": lambda: [
        {"train/" + name: value for name, value in row.items()}
        for part in resumed(36, stop=24, rewards=[correct], lr_scheduler_type="linear")
        for row in part
    ],
}
"""Log -> the script behind it."""


if __name__ == "__main__":
    sys.exit(main(__doc__, MADE))
