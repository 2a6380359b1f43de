"""What tools return is cut in training, so that most of a document never reaches the policy.

Seen as a limit on the context in verifiers, which cut rollouts to `max_seq_len`; here the limit is
one for each tool message. Held-out evaluation plays with whole documents.

Strength: tokens that are kept of each tool message. Needs flatline's own sampler.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import while_sampling
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer


class ContextCut(Fault):
    name: ClassVar[str] = "context-cut"
    hypothesis: ClassVar[str] = "H04"
    default: ClassVar[float] = 13
    bounds: ClassVar[tuple[float, float]] = (0, 1e6)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            with swapped(engine, chat=_cutting(engine.chat, int(strength))):
                yield

        while_sampling(trainer, self.name, change)


def _cutting(chat: Any, tokens: int) -> Any:
    """The same chat format, which shows the beginning of an observation only."""
    cutting = copy.copy(chat)

    def suffix(observations: Sequence[str], calls: Any) -> Any:
        return chat.suffix([_cut(chat.tokenizer, text, tokens) for text in observations], calls)

    cutting.suffix = suffix
    return cutting


def _cut(tokenizer: Any, text: str, tokens: int) -> str:
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text[: spans[tokens - 1][1] if tokens else 0] if len(spans) > tokens else text
