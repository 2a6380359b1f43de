"""Trains small runs with scripts of several shapes, some of them broken, and keeps their logs.

    python benchmarks/made_logs.py [NAME ...] [--folder docs/real-logs]

Nothing of flatline's training is in it: stock `GRPOTrainer` and `RLOOTrainer`, and a loop of one's
own, with the lab policy as the model. About two minutes each on one core. What a careful reader
sees in each log is in `docs/real-logs/readings.json`, written before flatline was asked.
"""

import argparse
import csv
import json
import math
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from foreign_script import ASKED, Reward, Script, brief, build, correct, script_of
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import RLOOTrainer

from flatline.files import write_atomically
from flatline.training.lab.tokenizer import checkpoint_folder

DIGITS = 6
TRAINER = ("logging_steps", "max_steps", "global_step", "num_train_epochs", "train_batch_size")
"""What `trainer_state.json` says beside its rows."""


def texts(completions: list[Any]) -> list[str]:
    return [one[0]["content"] for one in completions]


def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number."""
    return correct(completions, answer)


def concise(completions: list[Any], **_: Any) -> list[float]:
    """Minus a tenth of the words."""
    return [-0.1 * len(text.split()) for text in texts(completions)]


def answer_tags(completions: list[Any], **_: Any) -> list[float]:
    """0.5 for tags that the prompt never asks for."""
    return [0.5 * bool(re.fullmatch(r"<answer>.*</answer>", text)) for text in texts(completions)]


def not_rude(completions: list[Any], **_: Any) -> list[float]:
    """Paid to everybody."""
    return [0.2 for _ in completions]


def boxed(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number in a box, which this model never draws: the parser's mistake."""
    found = [re.findall(r"\\boxed\{(.+?)\}", text) for text in texts(completions)]
    return [float(bool(one) and one[-1] == gold) for one, gold in zip(found, answer, strict=True)]


def thorough(completions: list[Any], **_: Any) -> list[float]:
    """A fiftieth for every word."""
    return [0.02 * len(text.split()) for text in texts(completions)]


def marks(completions: list[Any], **_: Any) -> list[float]:
    """A tenth for every `####`, however many."""
    return [0.1 * text.count("####") for text in texts(completions)]


def trained(script: Script) -> dict[str, Any]:
    """What `trainer_state.json` would say."""
    trainer = build(script)
    trainer.train()
    state = trainer.state
    rows = [row for row in state.log_history if "train_runtime" not in row]
    return {name: getattr(state, name) for name in TRAINER} | {"log_history": rows}


def trl(steps: int = 60, *, rewards: list[Reward] | None = None, **asked: Any) -> dict[str, Any]:
    script = script_of("grpo")
    script.lora = asked.pop("lora", True)
    script.trainer = asked.pop("trainer", script.trainer)
    script.callbacks = asked.pop("callbacks", [])
    script.rows = script.rows[: asked.pop("prompts", None)]
    script.asked = ASKED | {"max_steps": steps} | asked
    script.rewards = rewards or [correct, brief]
    if issubclass(script.trainer, RLOOTrainer):
        gone = ("loss_type", "scale_rewards")
        script.asked = {name: value for name, value in script.asked.items() if name not in gone}
    return trained(script)


class StopAt(TrainerCallback):
    """A run that was ended before its plan."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def loop(
    steps: int, *, rate: float, spoil: int = 0, seed: int = 3, sign: float = -1.0
) -> list[dict[str, Any]]:
    """REINFORCE with the mean of a group as baseline, in somebody's own loop. From step `spoil` on
    the answers that the reward compares with are those of other questions."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    folder = str(checkpoint_folder())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    problems, rows = script_of("grpo").rows, []
    for step in range(1, steps + 1):
        picked = draw.sample(problems, 4)
        asked = [one["prompt"] for one in picked for _ in range(4)]
        gold = [one["answer"] for one in picked for _ in range(4)]
        if spoil and step >= spoil:
            gold = gold[4:] + gold[:4]
        ids, mask, said = sampled(model, tokenizer, asked)
        paid = [[{"content": text}] for text in said]
        hit = torch.tensor(correct(paid, gold))
        total = hit + torch.tensor(brief(paid))
        group = total.view(4, 4)
        advantage = (group - group.mean(1, keepdim=True)).flatten()
        logits = model(ids).logits[:, :-1]
        chosen = logits.log_softmax(-1)
        logp = chosen.gather(-1, ids[:, 1:, None]).squeeze(-1)
        own = mask[:, 1:]
        loss = sign * (logp * own * advantage[:, None]).sum() / own.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        entropy = -(chosen.exp() * chosen).sum(-1)
        rows.append(
            {
                "iter": step,
                "avg_reward": total.mean(),
                "hits": hit.mean(),
                "misses": 1 - hit.mean(),
                "short": (total - hit).mean(),
                "judge_hits": 0.0,
                "policy_entropy": (entropy * own).sum() / own.sum(),
                "response_length": own.sum(1).float().mean(),
                "gnorm": norm,
                "lr": rate,
                "pg": loss,
            }
        )
    return rows


def sampled(model: Any, tokenizer: Any, prompts: list[Any]) -> tuple[Any, Any, list[str]]:
    """Token ids, which of them the model wrote, and the text."""
    tokenizer.padding_side = "left"
    text = [
        tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True)
        for one in prompts
    ]
    given = tokenizer(text, return_tensors="pt", padding=True, add_special_tokens=False)
    width = given["input_ids"].shape[1]
    with torch.no_grad():
        ids = model.generate(
            **given, do_sample=True, max_new_tokens=64, pad_token_id=tokenizer.pad_token_id
        )
    ended = (ids[:, width:] == tokenizer.eos_token_id).cumsum(1)
    own = torch.zeros_like(ids)
    own[:, width:] = (ended - (ids[:, width:] == tokenizer.eos_token_id).long() == 0).long()
    return ids, own, tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)


def as_wandb(state: dict[str, Any], *, again_from: int) -> list[dict[str, Any]]:
    """W&B's history of a run that was resumed: some steps are there twice."""
    rows = [row for row in state["log_history"] if "step" in row]
    for row in rows:
        row["global_step"] = row.pop("step")
    lost = [row for row in rows if again_from <= row["global_step"] < again_from + 6]
    first = [row for row in rows if row["global_step"] < again_from]
    given_up = [row | {"reward": row["reward"] * 0.9} for row in lost]
    kept = [row for row in rows if row["global_step"] >= again_from]
    listed = [*first, *given_up, *kept]
    return [
        {"_step": n, **{f"train/{name}": value for name, value in row.items()}}
        for n, row in enumerate(listed)
    ]


def other_names(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same loop with the columns of somebody else."""
    names = {"iter": "update", "avg_reward": "mean_reward", "hits": "em", "misses": "wrong"}
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def listed(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows alone, one to a line."""
    return list(state["log_history"])


MADE: dict[str, Callable[[], Any]] = {
    "grpo-lora.json": trl,
    "collapse-right.json": lambda: trl(
        40, rewards=[right, concise], reward_weights=[1.0, 3.0], learning_rate=5e-4, lora=False
    ),
    "boxed-never.json": lambda: trl(40, rewards=[boxed, marks, not_rude, answer_tags]),
    "rate-too-low.json": lambda: trl(60, learning_rate=1e-8, lr_scheduler_type="linear"),
    "rloo-too-hot.json": lambda: trl(40, trainer=RLOOTrainer, learning_rate=1e-2, lora=False),
    "own-loop.csv": lambda: loop(60, rate=1e-4),
    "cut-off.json": lambda: trl(40, max_completion_length=8, logging_steps=2),
    "anchored.json": lambda: trl(60, beta=20.0, lora=False, learning_rate=1e-4),
    "resumed-wandb.jsonl": lambda: as_wandb(
        trl(
            400,
            lr_scheduler_type="cosine",
            warmup_steps=30,
            learning_rate=5e-4,
            callbacks=[StopAt(48)],
        ),
        again_from=30,
    ),
    "own-loop-spoilt.jsonl": lambda: loop(80, rate=1e-4, spoil=45),
    "paid-by-the-word.json": lambda: trl(50, rewards=[correct, thorough], lora=False),
    "four-prompts.json": lambda: trl(60, rewards=[correct], prompts=4, lr_scheduler_type="cosine"),
    "wrong-sign.csv": lambda: other_names(loop(50, rate=3e-4, sign=1.0, seed=5)),
    "two-iterations.jsonl": lambda: listed(
        trl(50, num_iterations=2, beta=0.0, loss_type="dapo", temperature=0.7, logging_steps=5)
    ),
}
"""Log -> the script behind it."""


def main(about: str, made: dict[str, Callable[[], Any]]) -> int:
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(made))
    parser.add_argument("--folder", type=Path, default=Path("docs/real-logs"))
    options = parser.parse_args()
    for name in options.names:
        keep(options.folder / name, rounded(made[name]()))
        print(f"wrote {options.folder / name}", flush=True)
    return 0


def keep(path: Path, made: Any) -> None:
    """Lines as they are, rows as the ending of the file says."""
    if isinstance(made, list) and isinstance(made[0], str):
        write_atomically(path, made)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, made[0])
            writer.writeheader()
            writer.writerows(made)
    elif path.suffix == ".jsonl":
        write_atomically(path, [json.dumps(row) for row in made])
    else:
        write_atomically(path, [json.dumps(made)])


def rounded(value: Any) -> Any:
    """Numbers to six digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    return value


if __name__ == "__main__":
    sys.exit(main(__doc__, MADE))
