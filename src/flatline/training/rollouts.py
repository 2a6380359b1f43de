"""Rollouts for TRL from the embedded engine (`GRPOTrainer(rollout_func=...)`).

TRL hands over a flat list of prompts, each as often as completions are owed. Which problem a prompt
belongs to comes from the `problem_id` column of its row, never from its text: two problems may ask
the same question of different documents.

The random numbers of a completion depend on the run's seed, the optimizer step, the problem and the
number of the completion inside its group, which is counted over all processes. So two processes
sample what one would have sampled, and a resumed run what the interrupted one would have.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.record import Finish, Rollout
from flatline.rollout.sampling import Sampling
from flatline.rollout.weights import WeightCopy
from flatline.tasks.base import Problem, Task

LONGEST = 32
"""Problems whose prompts are measured before a run."""
COPY_UP_TO = 1_000_000_000
"""Weights of a model that is copied without being asked."""


class LiveWeights:
    """The trainer's own model, as the engine wants it: with a version."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.version = 0
        """Optimizer steps behind the weights."""


class Rollouts:
    """Plays the problems of a batch with the weights that are being trained."""

    name = "embedded"
    """What a trace calls this engine."""

    def __init__(
        self, config: RunConfig, task: Task, problems: Sequence[Problem], tokenizer: Any
    ) -> None:
        self.config = config
        self.task = task
        # A template that the user chose is not replaced by ours where it lacks tools.
        template = tokenizer.chat_template if config.chat_template else None
        self.chat = ChatFormat(tokenizer, task.tools, template=template)
        self.tokenizer = tokenizer
        self.engine: Engine | None = None
        """Made at the first use: a sharded model can be checked only when it is gathered."""
        self.weights: WeightCopy | LiveWeights | None = None
        """What the engine samples from; its version is the optimizer step."""
        self._problems = {problem.id: problem for problem in problems}
        if len(self._problems) < len(problems):
            raise ConfigError(
                f"`{config.datasets}` has two problems with one id.\n"
                "Their completions would be compared as if they answered one question.\n"
                "Leave one of the datasets out."
            )

    def refuse_long_prompts(self, problems: Sequence[Problem]) -> None:
        """Find a question that does not fit before the first step, not at the step that plays it.

        The longest texts are looked at; the engine checks every one when it is played.
        """
        most = self.config.max_prompt_length
        if most is None:
            return
        longest = sorted(problems, key=lambda problem: len(problem.question))[-LONGEST:]
        lengths = [len(self.chat.prompt_ids(self.task.messages(problem))) for problem in longest]
        if max(lengths) > most:
            raise ConfigError(
                f"The longest prompt has {max(lengths)} tokens, and --max-prompt-length is {most}."
                "\nA question is never cut.\n"
                f"Type `--max-prompt-length {max(lengths)}` or more."
            )

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """What TRL calls. The rollouts themselves travel on to the reward functions."""
        ids: Sequence[str] = trainer.batch_problem_ids
        first = trainer.accelerator.process_index * len(prompts)
        jobs = [
            Job(self._problems[id], (first + i) % self.config.num_generations)
            for i, id in enumerate(ids)
        ]
        seed = step_seed(self.config.seed, trainer.state.global_step)
        with self.playing(trainer) as engine:
            rollouts = engine.play(jobs, seed=seed)
        return {
            "prompt_ids": [rollout.prompt_ids for rollout in rollouts],
            "completion_ids": [rollout.completion_ids for rollout in rollouts],
            "logprobs": [rollout.logprobs for rollout in rollouts],
            "env_mask": [rollout.loss_mask for rollout in rollouts],
            "rollout": list(rollouts),
        }

    @contextmanager
    def playing(self, trainer: GrpoTrainer) -> Iterator[Engine]:
        """The engine, with the trainer's weights whole and in the trainer's precision."""
        from trl.models import unwrap_model_for_generation

        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=True,
                gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
            ) as model,
            trainer.accelerator.autocast(),
        ):
            self._deliver(model, trainer)
            yield self._ready_engine()

    def _deliver(self, model: Any, trainer: GrpoTrainer) -> None:
        """Give the sampler the weights as they are now."""
        if self.weights is None:
            copied = samples_from_copy(self.config, model, trainer)
            self.weights = WeightCopy(model) if copied else LiveWeights(model)
        if isinstance(self.weights, WeightCopy):
            self.weights.deliver(model)
        self.weights.version = trainer.state.global_step

    def _ready_engine(self) -> Engine:
        if self.engine is None:
            self.engine = Engine(
                self.weights,
                self.tokenizer,
                self.task,
                sampling=sampling_of(self.config),
                limits=limits_of(self.config),
                chat=self.chat,
                max_batch=self.config.max_batch,
            )
        return self.engine


def samples_from_copy(config: RunConfig, model: Any, trainer: GrpoTrainer) -> bool:
    """Whether to sample from a copy with the adapters merged."""
    if config.sampler_weights != "auto":
        return config.sampler_weights == "copy"
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    weights = list(model.parameters())
    # In bf16, W + BA would be rounded and the copy be another policy than the one that is trained.
    exact = all(weight.dtype == torch.float32 for weight in weights)
    small = sum(weight.numel() for weight in weights) <= COPY_UP_TO
    return config.peft and exact and small and not sharded


def sampling_of(config: RunConfig) -> Sampling:
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
    )


def limits_of(config: RunConfig) -> Limits:
    return Limits(
        max_turns=config.max_turns,
        max_new_tokens=config.turn_tokens,
        max_prompt=config.max_prompt_length,
    )


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every optimizer step of every run."""
    name = f"{seed}\0{step}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=6).digest(), "little")


def context_was_cut(rollout: Rollout) -> bool:
    """Whether the limit on the context kept something from the model."""
    return rollout.finish is Finish.CONTEXT or any(turn.dropped for turn in rollout.turns)
