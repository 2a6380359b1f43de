"""What a run would do and cost, without doing it (`flatline train --dry-run`).

A policy and problems that lie on this machine are loaded and the trainer is built and read back. A
hub name is not fetched: then the plan says what will be asked of TRL.
"""

from pathlib import Path
from typing import Any

from flatline.config import LAB, RunConfig, prompts_per_step
from flatline.tasks.datasets import parse_specs
from flatline.training.arguments import trl_arguments, world_size
from flatline.training.effective import effective
from flatline.training.run import check_all, refuse_no_folder
from flatline.training.trainer import built_aside

LAB_SECONDS = 0.045
"""Seconds of one core that the lab policy takes for one completion, training included."""


def plan(config: RunConfig) -> dict[str, Any]:
    """Config, sizes, cost and, where it can be built, the trainer as it really is."""
    refuse_no_folder(Path(config.output_dir))
    prompts = prompts_per_step(config, world_size())
    chosen = {"learning_rate": config.rate, "max_new_tokens": config.turn_tokens}
    asked = {**config.to_dict(), **chosen}
    planned: dict[str, Any] = {"config": asked, "trl": trl_arguments(config)}
    problems = None
    if is_here(config):
        with built_aside(config) as built:
            check_all(built)
            planned["effective"] = effective(built.trainer, config)
            problems = len(built.problems)
    planned["cost"] = _cost(config, prompts, problems)
    return planned


def is_here(config: RunConfig) -> bool:
    """Whether model and data can be had without a network."""
    if config.engine != "embedded":
        return False
    eval_specs = LAB if config.eval_datasets is None else config.eval_datasets
    paths = [spec.path for specs in (config.datasets, eval_specs) for spec in parse_specs(specs)]
    return all(name == LAB or Path(name).expanduser().exists() for name in (config.model, *paths))


def _cost(config: RunConfig, prompts: int, problems: int | None) -> dict[str, Any]:
    steps, epochs = config.length
    if steps is None and problems is not None:
        steps = int(epochs * (problems // prompts)) * config.num_iterations
    batches = None if steps is None else -(-steps // config.num_iterations)
    completions = None if batches is None else batches * prompts * config.num_generations
    most = config.max_turns * config.turn_tokens
    cost: dict[str, Any] = {
        "optimizer_steps": steps if steps is not None else f"{epochs:g} epochs",
        "prompts_per_step": prompts,
        "completions_per_step": prompts * config.num_generations,
        "completions": completions if completions is not None else "known when the data is read",
        "sampled_tokens_at_most": completions * most if completions is not None else f"{most} each",
    }
    if config.model == LAB and completions is not None:
        evaluations = 2 + (steps or 0) // config.eval_steps if config.eval_steps else 2
        plays = evaluations * config.eval_limit * config.eval_samples
        cost["seconds_on_one_core"] = round(LAB_SECONDS * completions + 0.012 * plays)
    return cost
