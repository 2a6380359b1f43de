"""What the attachments to both of verifiers' trainers share."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatline.errors import ConfigError, TraceError
from flatline.live.hooks import is_mask, swapped
from flatline.live.trl.recorder.attach import Attachment
from flatline.live.verifiers.layout import Apart
from flatline.trace.writer import Sink


def made_by_verifiers(trainer: Any, *names: str) -> bool:
    """Whether its class, or one it is built on, is verifiers' own and has all of these."""
    own = any(kind.__module__.startswith("verifiers.") for kind in type(trainer).__mro__)
    return own and all(hasattr(trainer, name) for name in names)


def hold(trainer: Any, correct: str | None) -> None:
    """Nothing: a checkup of verifiers' trainers is refused in words."""
    if made_by_verifiers(trainer):
        raise ConfigError(
            f"A checkup cannot look at verifiers' {type(trainer).__name__}.\n"
            "It would have to sample a batch again with moved weights, and here a thread of the "
            "trainer samples from a server: what the server holds cannot be put back.\n"
            "Record it instead: `flatline.attach(trainer, run_dir)`, train three steps, then "
            "`flatline diagnose run_dir`."
        )


def lent(trainer: Any, env: Any, **more: Any) -> ExitStack:
    """The trainer has the names by which settings and rewards are read, until this is closed."""
    if trainer.accelerator.num_processes > 1:
        raise TraceError(
            f"verifiers' trainer runs on {trainer.accelerator.num_processes} processes.\n"
            "Its rollouts are known in the first one alone, so the others cannot be recorded.\n"
            "Train in one process, or record from the sampler's side: `flatline serve`."
        )
    names = ExitStack()
    names.enter_context(
        swapped(
            trainer,
            reward_func_names=[func.__name__ for func in env.get_reward_funcs()],
            reward_weights=torch.tensor(env.get_reward_weights()),
            use_vllm=True,
            **more,
        )
    )
    return names


class FromVerifiers(Attachment):
    """The hooks on one trainer of verifiers."""

    def __init__(
        self, trainer: Any, run_dir: str | Path | Sink, told: Mapping[str, Any], names: ExitStack
    ) -> None:
        self._own, self._names = trainer, names
        self._answers: deque[tuple[Any, Sequence[Any]]] = deque(maxlen=8)
        """Results of the environment with the states behind them, newest last."""
        super().__init__(trainer, run_dir, told)

    def detach(self) -> None:
        """Leave the trainer as it was before."""
        super().detach()
        self._names.close()

    def _hear_answers(self, args: Any, kwargs: Any, result: Any, seconds: float) -> None:
        self._answers.append((result, kwargs.get("states") or ()))


def attended(masks: Sequence[Any], apart: Apart) -> list[Tensor]:
    """The attention masks of a pass as one; none where the model was given another kind."""
    known = bool(masks) and all(map(is_mask, masks))
    return [apart.whole(torch.cat(list(masks)))] if known else []
