"""The trainer's prompt lacks the description of the tools, which the sampler's has.

Seen in verifiers before its commits e7a6cae6b and b581a50de: the server rendered the conversation
with `tools=`, the trainer without.

Strength: none; the schema is there or not. Only tokens that spell nothing else are left out: the
lab policy has one token for the instructions and most of the schema, and spelled letter by letter
they would be another fault.
"""

from itertools import takewhile
from typing import ClassVar

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import Sampled, edit_rollouts, needs_turns
from flatline.live.trl.grpo import GrpoTrainer
from flatline.rollout.chat import ChatFormat


class ToolSchemaMissing(Fault):
    name: ClassVar[str] = "tool-schema-missing"
    hypothesis: ClassVar[str] = "H10"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)
        template = getattr(getattr(trainer.rollout_func, "chat", None), "template", None)
        chat = ChatFormat(trainer.processing_class, (), template=template)
        known: dict[tuple[int, ...], list[int]] = {}

        def edit(rollout: Sampled) -> Sampled:
            key = tuple(rollout.prompt_ids)
            if key not in known:
                known[key] = _without_tools(chat, rollout)
            return rollout._replace(prompt_ids=list(known[key]))

        edit_rollouts(trainer, edit)


def _without_tools(chat: ChatFormat, rollout: Sampled) -> list[int]:
    """The prompt's tokens but those of the text that stands there because of the tools."""
    bare_ids = chat.prompt_ids(list(rollout.messages))
    full, bare = _text(chat, rollout.prompt_ids), _text(chat, bare_ids)
    start = _shared(full, bare)
    end = len(full) - _shared(full[start:][::-1], bare[start:][::-1])
    encoded = chat.tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
    if encoded["input_ids"] != rollout.prompt_ids:
        return bare_ids
    places = zip(rollout.prompt_ids, encoded["offset_mapping"], strict=True)
    kept = [id for id, (a, b) in places if not start <= a < b <= end]
    if kept == rollout.prompt_ids:
        raise ConfigError(
            "The prompt has no tokens for the description of tools alone.\n"
            "There is no schema to lose."
        )
    return kept


def _shared(a: str, b: str) -> int:
    """Characters that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _text(chat: ChatFormat, ids: list[int]) -> str:
    text: str = chat.tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text
