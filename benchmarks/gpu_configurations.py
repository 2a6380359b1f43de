"""Does a checkup cry wolf at a sound stock TRL script? The settings and precisions people use.

    python benchmarks/gpu_configurations.py [--only NAME ...] [--jobs 4] [--out FILE]
    python benchmarks/gpu_configurations.py --table FILE
    python benchmarks/gpu_configurations.py --dropout

Each configuration is TRL's own `GRPOTrainer` on the lab policy, with TRL's own sampler, built and
looked at in a process of its own. One JSON line of each goes to `--out`; the exit status is 1 where
any raised an alarm or did not end. Without a GPU, what needs one is skipped, and said. `--table`
prints the table behind docs/specification.md from such a file, `--dropout` measures the second.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NUMBER = re.compile(r"####\s*(-?[\d,\.]+)")
BASE: Mapping[str, Any] = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "max_completion_length": 96,
    "learning_rate": 1e-3,
    "beta": 0.04,
    "loss_type": "grpo",
    "max_steps": 40,
    "seed": 7,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}
LORA: Mapping[str, Any] = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0}
ROUNDED = {
    "H03": "KL before any update",
    "H15": "log-prob alone against in the batch (nat)",
    "H23": "two identical passes (nat), or the share of dropout's noise",
    "H28": "gradient in more passes, length beside 1",
}
"""Probes that rounding can reach, and what they measure."""
DROPOUTS = (("LoRA", 0.0), ("LoRA", 0.1), ("LoRA", 0.5), ("LoRA", 0.9), ("attention", 0.1))
FULL_RATE = 3e-4
"""Without adapters the lab policy wants a lower rate."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A sound setup: what it has other than `BASE`."""

    args: Mapping[str, Any] = field(default_factory=dict)
    lora: Mapping[str, Any] | None = field(default_factory=dict)
    """What the adapters have other than `LORA`; None trains all weights."""
    dtype: str = "float32"
    """Of the weights."""
    cuda: bool = False
    """Whether it needs a GPU."""


CONFIGURATIONS: Mapping[str, Configuration] = {
    "fp32": Configuration(),
    "eight-groups": Configuration(args={"gradient_accumulation_steps": 4}),
    "tf32": Configuration(args={"tf32": True}, cuda=True),
    "bf16": Configuration(args={"bf16": True}),
    "fp16": Configuration(args={"fp16": True}, cuda=True),
    "bf16-weights": Configuration(args={"bf16": True}, dtype="bfloat16"),
    "checkpointing": Configuration(args={"gradient_checkpointing": True}),
    "compile": Configuration(args={"torch_compile": True}, cuda=True),
    "all-weights": Configuration(args={"learning_rate": FULL_RATE}, lora=None),
    "all-weights-tf32": Configuration(
        args={"learning_rate": FULL_RATE, "tf32": True}, lora=None, cuda=True
    ),
    "all-weights-bf16": Configuration(args={"learning_rate": FULL_RATE, "bf16": True}, lora=None),
    "gspo": Configuration(args={"importance_sampling_level": "sequence", "epsilon": 3e-4}),
    "cispo": Configuration(args={"loss_type": "cispo", "epsilon_high": 5.0}),
    "dapo": Configuration(args={"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.0}),
    "dr-grpo": Configuration(args={"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0}),
    "batch-scaled": Configuration(args={"scale_rewards": "batch"}),
    "no-kl": Configuration(args={"beta": 0.0}),
    "top-k": Configuration(args={"top_k": 20}),
    "cool": Configuration(args={"temperature": 0.8}),
    "two-iterations": Configuration(args={"num_iterations": 2}),
    "epochs": Configuration(args={"max_steps": -1, "num_train_epochs": 4}),
    "lora-dropout": Configuration(lora={"lora_dropout": 0.1}),
    "lora-dropout-two-iterations": Configuration(
        args={"num_iterations": 2}, lora={"lora_dropout": 0.1}
    ),
    "lora-dropout-bf16": Configuration(
        args={"bf16": True, "gradient_checkpointing": True}, lora={"lora_dropout": 0.05}
    ),
    "mask-truncated": Configuration(
        args={"mask_truncated_completions": True, "max_completion_length": 40}
    ),
    "weighted-rewards": Configuration(args={"reward_weights": [1.0, 0.5]}),
}


def correct(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Is the last number after `####` the answer?"""
    found = [NUMBER.findall(one[0]["content"]) for one in completions]
    return [
        float(bool(numbers) and numbers[-1].replace(",", "").rstrip(".") == gold)
        for numbers, gold in zip(found, answer, strict=True)
    ]


def well_formed(completions: Sequence[Any], **_: Any) -> list[float]:
    """Is there one answer?"""
    return [0.2 * (len(NUMBER.findall(one[0]["content"])) == 1) for one in completions]


def trainer_of(one: Configuration, rows: int, folder: str) -> Any:
    """The trainer, as a user's script would build it."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from flatline.tasks import make_task
    from flatline.training.lab.tokenizer import checkpoint_folder

    task, lab = make_task("gsm8k"), str(checkpoint_folder())
    problems = task.load(f"lab,,train[:{rows}]", split="train")
    adapters = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(lab, dtype=getattr(torch, one.dtype)),
        processing_class=AutoTokenizer.from_pretrained(lab),
        reward_funcs=[correct, well_formed],
        args=GRPOConfig(
            **{**BASE, **one.args}, output_dir=folder, use_cpu=not torch.cuda.is_available()
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": task.messages(one), "answer": one.answer} for one in problems]
        ),
        peft_config=None if one.lora is None else LoraConfig(**{**LORA, **one.lora, **adapters}),
    )


def look(name: str, rows: int) -> dict[str, Any]:
    """The checkup of one configuration, as the line that is written about it."""
    from flatline import checkup
    from flatline.hypotheses.base import ALARMS, Level
    from flatline.live.trl.settings import run_facts

    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        trainer = trainer_of(CONFIGURATIONS[name], rows, folder)
        found = checkup(trainer).findings
        facts = run_facts(trainer, {})
    told = [f"{one.hypothesis} {one.level.value}: {one.text}" for one in found]
    levels = [one.level for one in found]
    return {
        "configuration": name,
        "asked": len(found),
        "alarms": [t for t, level in zip(told, levels, strict=True) if level in ALARMS],
        "notes": [t for t, level in zip(told, levels, strict=True) if level is Level.NOTE],
        "unknown": [t for t, level in zip(told, levels, strict=True) if level is Level.UNKNOWN],
        "measured": {
            one.hypothesis: {"value": one.to_json()["measured"], "expected": one.expected}
            for one in found
            if one.measured is not None
        },
        "seconds": round(time.perf_counter() - started, 1),
        "precision": facts["settings"]["precision"],
        "versions": facts["versions"],
        "hardware": facts["hardware"],
    }


def looked_at(name: str, rows: int, limit: float) -> dict[str, Any]:
    """The same in a process of its own, which may take `limit` seconds."""
    import torch

    if CONFIGURATIONS[name].cuda and not torch.cuda.is_available():
        return {"configuration": name, "skipped": "needs a GPU, and there is none here"}
    command = [sys.executable, __file__, "--child", name, "--rows", str(rows)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"configuration": name, "failed": f"not done after {limit:.0f} seconds"}
    if done.returncode:
        return {"configuration": name, "failed": done.stderr.strip()[-2000:] or "no word"}
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def outcome(line: Mapping[str, Any]) -> str:
    """What is said of a configuration, in a word or two and the texts behind them."""
    for word in ("skipped", "failed"):
        if word in line:
            return f"{word}: {line[word].splitlines()[-1]}"
    said = [*line["alarms"], *line["notes"]]
    answered = f"{line['asked'] - len(line['unknown'])} of {line['asked']} answered"
    return (
        f"{line['precision']}, {answered}, {line['seconds']:.0f} s: {'; '.join(said) or 'silent'}"
    )


def went_wrong(line: Mapping[str, Any]) -> bool:
    """Whether a sound configuration set off an alarm, or was not looked at to the end."""
    return bool(line.get("alarms")) or "failed" in line


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Tolerance and largest healthy value of what depends on the precision, as Markdown."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for line in lines:
        for hypothesis, what in ROUNDED.items():
            one = line.get("measured", {}).get(hypothesis, {})
            value = _number(one.get("value"))
            if value is not None:
                key = (line["precision"], f"{hypothesis} {what}", one["expected"])
                found.setdefault(key, []).append(abs(value - (hypothesis == "H28")))
    rows = [
        "| precision | measured | healthy is | configurations | largest |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {' | '.join(key)} | {len(values)} | {max(values):.2g} |"
        for key, values in sorted(found.items())
    ]
    return "\n".join(rows)


def dropout_table(rows: int) -> str:
    """What dropout makes of an update, by where it is and how much."""
    from flatline.live.trl.subject import TrlSubject

    told = ["| dropout | share of the update that is noise |", "|---|---|"]
    for where, p in DROPOUTS:
        one = Configuration(lora={"lora_dropout": p if where == "LoRA" else 0.0})
        with TemporaryDirectory() as folder:
            trainer = trainer_of(one, rows, folder)
            for module in trainer.model.modules() if where == "attention" else ():
                if hasattr(module, "attention_dropout"):
                    module.attention_dropout = p
            noise = max(0.0, 1 - TrlSubject(trainer).gradient_twice())
            told.append(f"| {where} {p:g} | {noise:.2f} |")
    return "\n".join(told)


def _number(measured: Any) -> float | None:
    return measured["value"] if isinstance(measured, dict) else measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--rows", type=int, default=64, help="problems of the training data")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each")
    parser.add_argument("--out", type=Path, help="file of one JSON line for each")
    parser.add_argument("--table", type=Path, help="print the table of a file that --out wrote")
    parser.add_argument("--dropout", action="store_true", help="print the table of dropout")
    parser.add_argument("--child", choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return
    if args.dropout:
        print(dropout_table(args.rows))
        return
    if args.child:
        print(json.dumps(look(args.child, args.rows)))
        return
    lines = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for line in pool.map(partial(looked_at, rows=args.rows, limit=args.limit), args.only):
            lines.append(line)
            print(f"{line['configuration']}: {outcome(line)}", flush=True)
            if args.out:
                args.out.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    wrong = sum(map(went_wrong, lines))
    skipped = sum("skipped" in line for line in lines)
    print(f"\n{wrong} of {len(lines) - skipped} sound configurations set off an alarm or failed")
    print(f"{skipped} skipped\n\n{table(lines)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
