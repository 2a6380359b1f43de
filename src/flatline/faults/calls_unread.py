"""What the model writes as a call is not read as one: it is taken for the final answer.

The server's parser expects another format than the chat template teaches. Seen in vLLM (issue
25108) and wherever `--tool-call-parser` is not the model's own.

Strength: share of the turns with a call that are not read. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import while_sampling
from flatline.faults.wrapping import needs_turns, place
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer


class CallsUnread(Fault):
    name: ClassVar[str] = "calls-unread"
    hypothesis: ClassVar[str] = "H41"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            healthy = engine.chat.parse

            def parse(text: str) -> Any:
                return [] if place(text) < strength else healthy(text)

            with swapped(engine.chat, parse=parse):
                yield

        while_sampling(trainer, self.name, change)
