"""The sampler keeps keys and values of prompts over deliveries of new weights.

New weights then write on top of what old ones read. Seen in NeMo-RL (pull request 4018: 17 steps
without a reset), vLLM (issues 9744 and 42125) and prime-rl (issue 1650).

Strength: optimizer steps from one reset of the cache to the next. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import policy, while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.weights import WeightCopy


class PrefixCacheStale(Fault):
    name: ClassVar[str] = "prefix-cache-stale"
    hypothesis: ClassVar[str] = "H19"
    default: ClassVar[float] = 1000
    bounds: ClassVar[tuple[float, float]] = (1, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        old, new = (WeightCopy(policy(trainer)) for _ in range(2))
        filled: list[Any] = []

        def read_prompts_with_old_weights(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            cache = kwargs["past_key_values"]
            # One cache belongs to one batch of episodes; what it reads first is their prompts.
            if kwargs["input_ids"].shape[1] > 1 and (not filled or filled[-1] is not cache):
                old.model(**kwargs)

        def after_prompts(module: Any, args: Any, kwargs: Any) -> None:
            if kwargs["input_ids"].shape[1] == 1:
                filled[:] = [kwargs["past_key_values"]]

        new.model.register_forward_pre_hook(after_prompts, with_kwargs=True)
        new.model.register_forward_hook(read_prompts_with_old_weights, with_kwargs=True)

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            step = trainer.state.global_step
            new.deliver(policy(trainer))
            new.version = step
            if step % int(strength) == 0:
                old.deliver(policy(trainer))
            with swapped(engine, _weights=new):
                yield
            filled.clear()

        while_sampling(trainer, self.name, change)
