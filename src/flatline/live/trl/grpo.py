"""TRL's `GRPOTrainer`, as far as flatline takes hold of it.

What only some releases or some set-ups have is asked for with `getattr` and is not listed. Types of
other packages that have none of their own are `Any`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

_SCORERS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
"""The method that computes log-probs, by its name today and in older releases."""


class GrpoTrainer(Protocol):
    """A trainer, built and not necessarily training."""

    args: Any
    model: Any
    model_wrapped: Any
    """As the launcher wraps it."""
    ref_model: Any
    processing_class: Any
    """Tokenizer or processor."""
    accelerator: Any
    state: Any
    control: Any
    callback_handler: Any
    optimizer: Any
    """None before training."""
    lr_scheduler: Any
    train_dataset: Any
    reward_funcs: list[Any]
    reward_func_names: list[str]
    reward_weights: Tensor
    reward_processing_classes: list[Any]
    rollout_func: Any
    """Plays instead of the trainer's own sampler; None where there is none."""
    temperature: float
    entropy_coef: float
    num_generations: int
    num_iterations: int
    beta: float
    generation_config: Any
    generation_kwargs: dict[str, Any]
    is_in_train: bool
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    current_gradient_accumulation_steps: int
    _step: int
    """Passes so far, which decide when rollouts are sampled."""
    _train_batch_size: int
    _buffered_inputs: Any
    """Sampled rollouts that wait to be trained."""
    _metrics: dict[str, dict[str, list[Any]]]

    _run_epoch: Any

    def train(self, resume_from_checkpoint: Any = None) -> Any:
        """The whole training."""

    def save_model(self, output_dir: str | None = None) -> None:
        """Weights and tokenizer."""

    def get_train_dataloader(self) -> Any:
        """Rows of one generation at a time."""

    def _get_train_sampler(self) -> Any:
        """Row numbers, in the order in which they are visited."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """One forward and backward pass."""

    def create_optimizer(self) -> Any:
        """Made when training begins, and kept."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Made when training begins, and kept."""

    def remove_callback(self, callback: Any) -> None:
        """By class or by instance."""

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        """What each reward function pays for each row, of all processes."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Rollouts, rewards and advantages of these rows."""

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Of one pass."""


def scorer_of(trainer: GrpoTrainer) -> str:
    """Name of the method that computes log-probs; empty where there is none."""
    return next((name for name in _SCORERS if hasattr(trainer, name)), "")


def scored(result: Any) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies: releases return them alone, as a pair, or with more behind."""
    if not isinstance(result, tuple):
        return result, None
    return result[0], result[1] if len(result) > 1 else None
