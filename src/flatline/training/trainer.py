"""Builds TRL's GRPOTrainer. Nothing else in flatline does.

The loss, the advantages and the optimizer are TRL's own. `Trainer` only listens at hooks that TRL
has kept for years, makes scoring passes run without dropout, and deals plays out to passes by
length where that is asked for.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # we know that rollout_func may change

from datasets import Dataset
from trl import GRPOTrainer

from flatline.config import RunConfig, prompts_per_step
from flatline.errors import ConfigError
from flatline.faults import changed, find, plant_all
from flatline.live.inputs import by_length, score_by_length
from flatline.rollout.engine import KERNELS
from flatline.rollout.record import Rollout
from flatline.rollout.table import evaluating
from flatline.tasks import make_task
from flatline.tasks.base import Problem, Task
from flatline.tasks.datasets import parse_specs
from flatline.training.arguments import lora_config, trl_arguments, trl_config, world_size
from flatline.training.environment import (
    PROBLEM_ID,
    environment_factory,
    environment_rows,
    tokenizer_for_trl,
)
from flatline.training.metrics import (
    LoraMetrics,
    advantage_metrics,
    context_metrics,
    logprob_gap,
    ratio_metrics,
    within_group_std,
)
from flatline.training.models import load_policy
from flatline.training.rewards import environment_functions, reward_functions, reward_weights
from flatline.training.rollouts import Rollouts
from flatline.training.vllm import check_vllm


class Trainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, with ears."""

    batch_problem_ids: Sequence[str] = ()
    """The problem of each prompt that is being sampled."""
    passes_by_length = False
    """Whether completions of like length share a pass."""
    _buffered_inputs: Any
    """TRL's: what the passes of this step are given."""
    _sampling_seconds = 0.0
    """Of the newest batch."""

    def note(self, name: str, value: float) -> None:
        """Add to the next log line; several values of one name are averaged."""
        self._metrics["train"][name].append(value)

    def log_now(self, logs: dict[str, float]) -> None:
        """A log line of its own, which takes nothing from the line of the current step."""
        due = self.control.should_log  # logging would strike the step's own line off
        super(GRPOTrainer, self).log(logs)
        self.control.should_log = due

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        start = time.perf_counter()
        self.batch_problem_ids = [row[PROBLEM_ID] for row in inputs]
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        sampling = self._sampling_seconds
        scoring = time.perf_counter() - start - sampling
        self._shares = {"time/sampling": sampling, "time/scoring": scoring}
        everyone = list(self._logs["advantages"])[-len(inputs) * self.accelerator.num_processes :]
        self._note_all(advantage_metrics(everyone))
        played: list[Rollout] = [row["rollout"] for row in inputs if "rollout" in row]
        if played:
            self._note_all(self._averaged(context_metrics(played)))
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.passes_by_length or self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = by_length(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = super()._generate(*args, **kwargs)
        self._sampling_seconds = time.perf_counter() - start
        return found

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards_BF: Tensor = super()._calculate_rewards(*args, **kwargs)
        weights = self.reward_weights.to(rewards_BF.device)
        total_B = (rewards_BF * weights).nansum(dim=1)
        self.note("debug/reward_std", within_group_std(total_B, self.num_generations))
        return rewards_BF

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
            self._trained_logps = found[0].detach()
            return found
        # Dropout belongs into the pass that is trained through, not into what it is compared with.
        with evaluating(model):
            if self.passes_by_length and "batch_size" in kwargs:
                return self._score_by_length(model, *args, **kwargs), None, None
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)

    def _score_by_length(
        self, model: Any, ids: Tensor, seen: Tensor, keep: int, batch_size: int, **kwargs: Any
    ) -> Tensor:
        def score(ids_BL: Tensor, seen_BL: Tensor, last: int) -> Tensor:
            plain = super(Trainer, self)._get_per_token_logps_and_entropies
            found: Tensor = plain(model, ids_BL, seen_BL, last, **kwargs)[0]
            return found

        return score_by_length(score, ids, seen, keep, batch_size)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)
        sampler_BT = inputs.get("sampling_per_token_logps")
        mask_BT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        old_BT = inputs.get("old_per_token_logps")
        if self.model.training:
            self._note_all(ratio_metrics(self._trained_logps, old_BT, mask_BT))
        if sampler_BT is not None and self.model.training:
            self._note_all(logprob_gap(sampler_BT, self._trained_logps, mask_BT))
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        start = time.perf_counter()
        self._shares = {"time/sampling": 0.0, "time/scoring": 0.0}
        with sdpa_kernel(KERNELS):
            loss: Tensor = super().training_step(*args, **kwargs)
        backward = time.perf_counter() - start - sum(self._shares.values())
        # One line averages over the passes of a step, so that they add up to the step.
        passes = self.args.gradient_accumulation_steps
        for name, seconds in {**self._shares, "time/backward": backward}.items():
            self.note(name, seconds * passes)
        return loss

    def _note_all(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.note(name, value)

    def _averaged(self, values: dict[str, float]) -> dict[str, float]:
        """The mean over processes, which play equally many episodes."""
        local = torch.tensor(list(values.values()), device=self.accelerator.device)
        mean = self.accelerator.gather(local[None]).mean(dim=0).tolist()
        return dict(zip(values, mean, strict=True))


@dataclass(slots=True)
class Built:
    """A trainer and what it was built from."""

    trainer: Trainer
    config: RunConfig
    task: Task
    problems: list[Problem]
    """Training problems."""
    heldout: list[Problem]
    """Held-out problems."""
    rollouts: Rollouts
    arguments: dict[str, Any]
    """What was asked of TRL's config."""


def build(config: RunConfig) -> Built:
    """A trainer that is ready to train. Whatever can be known to fail fails here."""
    faults = find(config.fault)
    config = changed(config, faults)
    prompts_per_step(config, world_size())
    check_vllm(config)
    arguments = trl_arguments(config)
    args = trl_config(arguments)
    task, problems, heldout = load_problems(config)
    _refuse_too_few(config, problems)
    policy = load_policy(
        config.model,
        device="cpu",  # the trainer moves it, each process to its own device
        dtype="bfloat16" if config.bf16 and config.peft else "float32",
        chat_template=config.chat_template,
    )
    rollouts = Rollouts(config, task, problems, policy.tokenizer)
    rollouts.refuse_long_prompts([*problems, *heldout])
    playing = playing_arguments(config, task, problems, policy.tokenizer, rollouts)
    weights = reward_weights(playing["reward_funcs"], config.reward)
    args.reward_weights = arguments["reward_weights"] = weights
    with lora_that_matches(config):
        trainer = Trainer(
            model=policy.model,
            args=args,
            train_dataset=Dataset.from_list(environment_rows(task, problems)),
            peft_config=lora_config(config) if config.peft else None,
            **playing,
        )
    trainer.passes_by_length = config.passes == "by-length"
    _refuse_fsdp(trainer, config)
    _refuse_other_precision(trainer, config)
    if config.peft:
        trainer.add_callback(LoraMetrics(trainer))
    plant_all(trainer, faults)
    return Built(trainer, config, task, problems, heldout, rollouts, arguments)


@contextmanager
def built_aside(config: RunConfig) -> Iterator[Built]:
    """A trainer that is only looked at: TRL makes its folder at once, and nobody needs that one."""
    with TemporaryDirectory(prefix="flatline-") as scratch:
        yield build(replace(config, output_dir=scratch))


def playing_arguments(
    config: RunConfig, task: Task, problems: Sequence[Problem], tokenizer: Any, rollouts: Rollouts
) -> dict[str, Any]:
    """Who plays and scores: our engine, or TRL's tool loop with the task as environment."""
    if config.engine == "embedded":
        return {
            "processing_class": tokenizer,
            "rollout_func": rollouts,
            "reward_funcs": reward_functions(task, problems),
        }
    return {
        "processing_class": tokenizer_for_trl(tokenizer),
        "environment_factory": environment_factory(task, problems),
        "reward_funcs": environment_functions(task, problems),
    }


def load_problems(config: RunConfig) -> tuple[Task, list[Problem], list[Problem]]:
    """The task, its training problems and its held-out problems."""
    options = {"noise": config.noise, "retriever": config.retriever}
    given = {name: value for name, value in options.items() if value is not None}
    ordered = {"order": config.order} if config.task == "musique" else {}
    task = make_task(config.task, **given, **ordered)
    problems = task.load(config.datasets, split="train")
    heldout: list[Problem] = []
    if config.eval_limit:
        # Without the order: which problems are held out must not depend on it.
        same_for_all = make_task(config.task, **given)
        heldout = same_for_all.load(heldout_specs(config), split="validation")
    return task, problems, heldout[: config.eval_limit]


def heldout_specs(config: RunConfig) -> str:
    """What is held out: as given, or the validation split of the training data."""
    if config.eval_datasets is not None:
        return config.eval_datasets
    made = []
    for spec in parse_specs(config.datasets):
        if Path(spec.path).expanduser().is_file():
            raise ConfigError(
                f"Which problems are held out? --datasets {spec.text} is one file.\n"
                "Name others with `--eval-datasets`, or leave held-out evaluation out with "
                "`--eval-limit 0`."
            )
        made.append(f"{spec.path},{spec.config or ''},validation")
    return ";".join(dict.fromkeys(made))


@contextmanager
def lora_that_matches(config: RunConfig) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "target modules" not in str(error).lower():
            raise
        raise ConfigError(
            f"--lora-targets {config.lora_targets} matches no layer of {config.model}.\n"
            "There would be nothing to train.\nType `--lora-targets all-linear`."
        ) from error


def _refuse_fsdp(trainer: Trainer, config: RunConfig) -> None:
    """Our engine plays each process's episodes for itself; FSDP wants all to step together."""
    if trainer.is_fsdp_enabled and (config.engine == "embedded" or config.eval_limit):
        raise ConfigError(
            "With FSDP a process holds a part of the weights only, and the embedded engine needs "
            "all of them.\nType `--engine vllm-server --eval-limit 0` and score the checkpoints "
            "with `flatline evaluate`, or use configs/accelerate/zero3.yaml."
        )


def _refuse_other_precision(trainer: Trainer, config: RunConfig) -> None:
    """transformers stops at the first step where DeepSpeed's precision is not the trainer's."""
    asked = "bf16" if config.bf16 else "no"
    if trainer.is_deepspeed_enabled and trainer.accelerator.mixed_precision != asked:
        found = trainer.accelerator.mixed_precision
        raise ConfigError(
            f"The accelerate config says `mixed_precision: {found}`, and the run is one with "
            f"{'--bf16' if config.bf16 else '--no-bf16'}.\n"
            "DeepSpeed would not keep the weights in the trainer's precision.\n"
            f"Type `{'--bf16' if found == 'bf16' else '--no-bf16'}`, or `accelerate launch "
            f"--mixed_precision {asked}`."
        )


def _refuse_too_few(config: RunConfig, problems: Sequence[Problem]) -> None:
    needed = prompts_per_step(config, world_size())
    if len(problems) < needed:
        raise ConfigError(
            f"`{config.datasets}` has {len(problems)} problems, and a step needs {needed}.\n"
            "TRL would leave out the incomplete batch and train on nothing.\n"
            f"Give more problems, or a smaller --batch-size (now {config.batch_size})."
        )
