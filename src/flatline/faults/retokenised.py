"""Completions become text and then tokens again on their way to the trainer.

What the model sampled is not what comes back: text processing strips blanks, a name is spelled in
other pieces, and a tool call that went through JSON has lost the blanks behind its commas and
colons. Gradients land on tokens that were never sampled. Seen wherever a chat server returns text
and parsed calls (vLLM, "No more retokenization drift").

Strength: share of the turns that are encoded again. The mask follows the turns; the sampler's
log-probs of a turn are cut or filled to its new length, as such code does.
"""

import json
import re
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Sampled, edit_rollouts, runs, spread
from flatline.live.trl.grpo import GrpoTrainer

OBJECT = re.compile(r"\{.*\}", re.DOTALL)
"""Where a turn may hold a call."""


class Retokenised(Fault):
    name: ClassVar[str] = "retokenised"
    hypothesis: ClassVar[str] = "H11"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        tokenizer = trainer.processing_class

        def edit(rollout: Sampled) -> Sampled:
            turns = runs(rollout.mask)
            chosen = zip(turns, spread(len(turns), strength), strict=True)
            for turn in reversed([turn for turn, again in chosen if again]):
                rollout = _with_turn_again(rollout, turn, tokenizer)
            return rollout

        edit_rollouts(trainer, edit)


def _with_turn_again(rollout: Sampled, turn: range, tokenizer: Any) -> Sampled:
    where = slice(turn.start, turn.stop)
    new = _again(rollout.completion_ids[where], tokenizer)
    ids, mask = list(rollout.completion_ids), list(rollout.mask)
    ids[where], mask[where] = new, [1] * len(new)
    logprobs = None if rollout.logprobs is None else list(rollout.logprobs)
    if logprobs is not None:
        logprobs[where] = [*logprobs[where], *[0.0] * len(new)][: len(new)]
    return rollout._replace(completion_ids=ids, mask=mask, logprobs=logprobs)


def _again(ids: list[int], tokenizer: Any) -> list[int]:
    """The turn as text and back; the end-of-turn token is not part of the text."""
    end = ids[-1:] if ids[-1] in tokenizer.all_special_ids else []
    text = tokenizer.decode(ids[: len(ids) - len(end)], clean_up_tokenization_spaces=False)
    text = OBJECT.sub(_compact, text.strip())
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], *end]


def _compact(found: re.Match[str]) -> str:
    """JSON as pydantic writes it; anything else as it is."""
    try:
        return json.dumps(json.loads(found[0]), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return found[0]
