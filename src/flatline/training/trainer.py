"""Builds TRL's GRPOTrainer. Nothing else in flatline does.

Every value that decides the outcome is stated here, whatever TRL's default is today. The loss, the
advantages and the optimizer are TRL's own. `Trainer` only listens at the three hooks that TRL has
kept for years, and makes scoring passes run without dropout.
"""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # we know that rollout_func may change

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from flatline.config import RunConfig, prompts_per_step
from flatline.errors import ConfigError
from flatline.rollout.record import Rollout
from flatline.rollout.table import evaluating
from flatline.tasks import make_task
from flatline.tasks.base import Problem, Task
from flatline.tasks.datasets import parse_specs
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
    within_group_std,
)
from flatline.training.models import load_policy
from flatline.training.rewards import environment_functions, reward_functions, reward_weights
from flatline.training.rollouts import Rollouts
from flatline.training.vllm import check_vllm, vllm_arguments


class Trainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, with ears."""

    batch_problem_ids: Sequence[str] = ()
    """The problem of each prompt that is being sampled."""

    def note(self, name: str, value: float) -> None:
        """Add to the next log line; several values of one name are averaged."""
        self._metrics["train"][name].append(value)

    def log_now(self, logs: dict[str, float]) -> None:
        """A log line of its own, which takes nothing from the line of the current step."""
        super(GRPOTrainer, self).log(logs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        start = time.perf_counter()
        self.batch_problem_ids = [row[PROBLEM_ID] for row in inputs]
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        sampling = self.rollout_func.seconds if self.rollout_func else 0.0
        scoring = time.perf_counter() - start - sampling
        self._shares = {"time/sampling": sampling, "time/scoring": scoring}
        everyone = list(self._logs["advantages"])[-len(inputs) * self.accelerator.num_processes :]
        self._note_all(advantage_metrics(everyone))
        played: list[Rollout] = [row["rollout"] for row in inputs if "rollout" in row]
        if played:
            self._note_all(self._averaged(context_metrics(played)))
        return output

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
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)
        sampler_BT = inputs.get("sampling_per_token_logps")
        if sampler_BT is not None and self.model.training:
            mask_BT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            self._note_all(logprob_gap(sampler_BT, self._trained_logps, mask_BT))
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        start = time.perf_counter()
        self._shares = {"time/sampling": 0.0, "time/scoring": 0.0}
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
    check_vllm(config)
    arguments = trl_arguments(config)
    args = _trl_config(arguments)
    task, problems, heldout = load_problems(config)
    _refuse_too_few(config, problems, processes=args.world_size)
    policy = load_policy(
        config.model,
        device="cpu",  # the trainer moves it, each process to its own device
        dtype="bfloat16" if config.bf16 and config.peft else "float32",
        chat_template=config.chat_template,
    )
    rollouts = Rollouts(config, task, problems, policy.tokenizer)
    playing = playing_arguments(config, task, problems, policy.tokenizer, rollouts)
    args.reward_weights = arguments["reward_weights"] = reward_weights(playing["reward_funcs"])
    with _lora_that_matches(config):
        trainer = Trainer(
            model=policy.model,
            args=args,
            train_dataset=Dataset.from_list(environment_rows(task, problems)),
            peft_config=lora_config(config) if config.peft else None,
            **playing,
        )
    if config.peft:
        trainer.add_callback(LoraMetrics(trainer))
    return Built(trainer, config, task, problems, heldout, rollouts, arguments)


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


def trl_arguments(config: RunConfig) -> dict[str, Any]:
    """Every value of TRL's config that matters, by TRL's names."""
    steps, epochs = config.length
    return {
        "output_dir": config.output_dir,
        "run_name": config.run_name or Path(config.output_dir).name,
        "report_to": [name.strip() for name in config.report_to.split(",")],
        "seed": config.seed,
        "data_seed": config.seed,
        # sizes
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "steps_per_generation": config.gradient_accumulation_steps,
        "num_generations": config.num_generations,
        "num_iterations": config.num_iterations,
        "max_steps": -1 if steps is None else steps,
        "num_train_epochs": epochs,
        "shuffle_dataset": config.order == "shuffled",
        "max_completion_length": config.max_turns * config.max_new_tokens,
        # sampling
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p or None,
        "repetition_penalty": 1.0,
        **vllm_arguments(config),
        # loss
        "loss_type": config.loss_type,
        "beta": config.kl_beta,
        "epsilon": config.epsilon,
        "epsilon_high": None,
        "delta": None,
        "scale_rewards": config.scale_rewards,
        "multi_objective_aggregation": "sum_then_normalize",
        "importance_sampling_level": "token",
        "mask_truncated_completions": False,
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "off_policy_mask_threshold": None,
        "use_bias_correction_kl": False,
        "sync_ref_model": False,
        "disable_dropout": config.lora_dropout == 0 or not config.peft,
        "cast_lm_head_to_fp32": False,
        # optimizer
        "optim": "adamw_torch",
        "learning_rate": config.rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "warmup_steps": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": 1e-8,
        "max_grad_norm": config.max_grad_norm,
        "bf16": config.bf16,
        "fp16": False,
        "gradient_checkpointing": config.gradient_checkpointing,
        # logs and checkpoints
        "logging_strategy": "steps",
        "logging_steps": config.logging_steps,
        "logging_first_step": True,
        "log_completions": config.log_completions,
        "num_completions_to_print": 1,
        "save_strategy": "steps" if config.save_steps else "no",
        "save_steps": config.save_steps or 500,
        "save_only_model": False,
        "eval_strategy": "no",
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def lora_config(config: RunConfig) -> LoraConfig:
    targets: str | list[str] = config.lora_targets
    if targets != "all-linear":
        targets = [name.strip() for name in config.lora_targets.split(",")]
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets,
        bias="none",
        use_rslora=False,
        use_dora=False,
        init_lora_weights=True,
        task_type="CAUSAL_LM",
    )


def load_problems(config: RunConfig) -> tuple[Task, list[Problem], list[Problem]]:
    """The task, its training problems and its held-out problems."""
    options: dict[str, Any] = {"noise": config.noise, "retriever": config.retriever}
    if config.task == "musique":
        options["order"] = config.order
    task = make_task(config.task, **{k: v for k, v in options.items() if v is not None})
    problems = task.load(config.datasets, split="train")
    heldout: list[Problem] = []
    if config.eval_limit:
        specs = heldout_specs(config)
        heldout = task.load(specs, split="validation")[: config.eval_limit]
    return task, problems, heldout


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


def _trl_config(arguments: dict[str, Any]) -> GRPOConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return GRPOConfig(**arguments)
        except ValueError as error:
            raise ConfigError(f"TRL refuses this configuration: {error}") from error


@contextmanager
def _lora_that_matches(config: RunConfig) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "target modules" not in str(error).lower():
            raise
        raise ConfigError(
            f"--lora-targets {config.lora_targets} matches no layer of {config.model}.\n"
            "There would be nothing to train.\nType `--lora-targets all-linear`."
        ) from error


def _refuse_too_few(config: RunConfig, problems: Sequence[Problem], *, processes: int) -> None:
    needed = prompts_per_step(config, processes)
    if len(problems) < needed:
        raise ConfigError(
            f"`{config.datasets}` has {len(problems)} problems, and a step needs {needed}.\n"
            "TRL would leave out the incomplete batch and train on nothing.\n"
            f"Give more problems, or a smaller --batch-size (now {config.batch_size})."
        )
