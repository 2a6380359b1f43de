"""Rollouts for TRL from the embedded engine (`GRPOTrainer(rollout_func=...)`).

TRL hands over a flat list of prompts, each as often as completions are owed. Which problem a prompt
belongs to comes from the `problem_id` column of its row, never from its text: two problems may ask
the same question of different documents.

The random numbers of a completion depend on the run's seed, the optimizer step, the problem and the
number of the completion inside its group, which is counted over all processes. So two processes
sample what one would have sampled, and a resumed run what the interrupted one would have.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.record import Finish, Rollout
from flatline.rollout.sampling import Sampling
from flatline.tasks.base import Problem, Task


class LiveWeights:
    """The trainer's own model, as the engine wants it: with a version."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.version = 0
        """Optimizer steps behind the weights."""


class Rollouts:
    """Plays the problems of a batch with the weights that are being trained."""

    def __init__(
        self, config: RunConfig, task: Task, problems: Sequence[Problem], tokenizer: Any
    ) -> None:
        self.config = config
        self.task = task
        self.chat = ChatFormat(tokenizer, task.tools)
        self.tokenizer = tokenizer
        self.engine: Engine | None = None
        """Made at the first use: a sharded model can be checked only when it is gathered."""
        self.seconds = 0.0
        """Wall time of the last batch."""
        self._problems = {problem.id: problem for problem in problems}
        if len(self._problems) < len(problems):
            raise ConfigError(
                f"`{config.datasets}` has two problems with one id.\n"
                "Their completions would be compared as if they answered one question.\n"
                "Leave one of the datasets out."
            )

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """What TRL calls. The rollouts themselves travel on to the reward functions."""
        start = time.perf_counter()
        ids: Sequence[str] = trainer.batch_problem_ids
        first = trainer.accelerator.process_index * len(prompts)
        jobs = [
            Job(self._problems[id], (first + i) % self.config.num_generations)
            for i, id in enumerate(ids)
        ]
        seed = step_seed(self.config.seed, trainer.state.global_step)
        with self.playing(trainer) as engine:
            rollouts = engine.play(jobs, seed=seed)
        self.seconds = time.perf_counter() - start
        return {
            "prompt_ids": [rollout.prompt_ids for rollout in rollouts],
            "completion_ids": [rollout.completion_ids for rollout in rollouts],
            "logprobs": [rollout.logprobs for rollout in rollouts],
            "env_mask": [rollout.loss_mask for rollout in rollouts],
            "rollout": list(rollouts),
        }

    @contextmanager
    def playing(self, trainer: Any) -> Iterator[Engine]:
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
            yield self._engine_for(model, trainer.state.global_step)

    def _engine_for(self, model: Any, version: int) -> Engine:
        if self.engine is None or self.engine._weights.model is not model:
            self.engine = Engine(
                LiveWeights(model),
                self.tokenizer,
                self.task,
                sampling=sampling_of(self.config),
                limits=limits_of(self.config),
                chat=self.chat,
                max_batch=self.config.max_batch,
            )
        self.engine._weights.version = version
        return self.engine


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
        max_new_tokens=config.max_new_tokens,
        max_prompt=config.max_prompt_length,
    )


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every optimizer step of every run."""
    name = f"{seed}\0{step}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=6).digest(), "little")


def context_was_cut(rollout: Rollout) -> bool:
    """Whether the limit on the context kept something from the model."""
    return rollout.finish is Finish.CONTEXT or any(turn.dropped for turn in rollout.turns)
