"""Seconds of one training step by part: flatline's engine against TRL's own `generate`.

    python benchmarks/step_time.py [--steps 6]

Same task, policy, problems, batch and loss; steps of the two alternate in one process, so that a
busy machine is unfair to both alike. The first step of each is left out. TRL plays through its tool
loop with the task as environment.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace

import torch
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging

from flatline.config import RunConfig
from flatline.training.arguments import lora_config, trl_arguments, trl_config
from flatline.training.environment import environment_rows
from flatline.training.models import load_policy
from flatline.training.rewards import reward_weights
from flatline.training.rollouts import Rollouts
from flatline.training.trainer import Trainer, load_problems, playing_arguments

PARTS = ("time/sampling", "time/scoring", "time/backward", "step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            max_steps=10_000, max_new_tokens=64, output_dir=folder, eval_limit=0, datasets="lab"
        )
        sides = {"flatline": trainer_of(config, ours=True), "TRL": trainer_of(config, ours=False)}
        measured = {name: [] for name in sides}
        for _ in range(args.steps):
            for name, trainer in sides.items():
                measured[name].append(one_step(trainer))
    print("| part | flatline | TRL | TRL / flatline |\n|---|---|---|---|")
    for part in PARTS:
        ours, theirs = (statistics.median(s[part] for s in measured[n][1:]) for n in sides)
        ratio = f"{theirs / ours:.1f}" if ours > 0.01 else "-"
        print(f"| {part.removeprefix('time/')} | {ours:.2f} | {theirs:.2f} | {ratio} |")


def trainer_of(config: RunConfig, *, ours: bool) -> Trainer:
    task, problems, _ = load_problems(config)
    policy = load_policy(config.model, device="cpu")
    rollouts = Rollouts(config, task, problems, policy.tokenizer)
    player = config if ours else replace(config, engine="vllm-colocate")
    playing = playing_arguments(player, task, problems, policy.tokenizer, rollouts)
    arguments = trl_arguments(config)
    if not ours:
        arguments["generation_kwargs"] = {"max_new_tokens": config.turn_tokens}
        arguments["max_tool_calling_iterations"] = config.max_turns - 1
    arguments["reward_weights"] = reward_weights(playing["reward_funcs"])
    trainer = Trainer(
        model=policy.model,
        args=trl_config(arguments),
        train_dataset=Dataset.from_list(environment_rows(task, problems)),
        peft_config=lora_config(config),
        **playing,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.create_optimizer()
    trainer.batches = iter(trainer.get_train_dataloader())
    return trainer


def one_step(trainer: Trainer) -> dict[str, float]:
    """One sampled batch, one backward pass, one optimizer step."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer._metrics["train"].clear()
    batch = next(trainer.batches)
    start = time.perf_counter()
    trainer.training_step(trainer.model, batch, None)
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    trainer.state.global_step += 1
    values = {name: sum(trainer._metrics["train"][name]) for name in PARTS[:-1]}
    return {**values, "step": time.perf_counter() - start}


if __name__ == "__main__":
    main()
