"""A row of NeMo-RL's `train_data_stepN.jsonl` or `val_data_stepN.jsonl` in its log folder.

    {"content": [["What is 2+2?", "4"]], "rewards": [1.0], "input_lengths": [7],
     "token_ids": [[1, 2, 3, 4, 5, 6, 7, 0]], "token_loss_mask": [[0, 0, 0, 0, 0, 1, 1, 0]],
     "sample_loss_mask": [1.0], "advantages": [[0.5, ...]], "generation_logprobs": [[...]],
     "prev_logprobs": [[...]], "idx": 0}

Every value is a batch of one. Lists over tokens are padded on the right; `input_lengths` says where
they end. With dynamic sampling `rewards` is of all rollouts and no longer of the row's own: that is
`filtered_rewards` then.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatline.trace.importers.kind import Kind, Row, constant, counted, hashed, sequence
from flatline.trace.importers.numbers import number, whole
from flatline.trace.importers.texts import messages_in, prompt_id, told

_TRAINED = frozenset({"rewards", "token_loss_mask", "generation_logprobs"})
_VALIDATED = frozenset({"rewards", "content", "idx"})
_OWN = (
    _TRAINED
    | _VALIDATED
    | {
        *("step", "filtered_rewards", "input_lengths", "token_ids", "sample_loss_mask"),
        *("advantages", "prev_logprobs", "agent_ref", "sample_id", "metadata"),
    }
)


def _rollouts(values: Mapping[str, Any]) -> list[Row]:
    only = {name: _single(value) for name, value in values.items()}
    tokens = _tokens(only)
    prompt, completion = _texts(only.get("content"))
    trained = only.get("token_loss_mask")
    row: Row = {
        "step": whole(values.get("step")),
        "prompt_id": hashed(tokens["prompt_ids"]) if tokens else prompt_id(None, prompt),
        "reward": number(only.get("filtered_rewards", only.get("rewards"))),
        "advantage": constant(only.get("advantages"), trained if tokens else None),
        "parts": {},
        "prompt": prompt,
        "completion": completion,
        "tokens": tokens,
        **counted(tokens),
    }
    return [row]


def _tokens(only: Mapping[str, Any]) -> Row | None:
    """What is trained: nothing where the whole sample is left out of the loss."""
    before = only.get("prev_logprobs")
    found = sequence(
        only.get("token_ids"),
        only.get("token_loss_mask"),
        sampler=only.get("generation_logprobs"),
        trainer=before,
        old=before,
        end=whole(only.get("input_lengths")),
    )
    if found is not None and number(only.get("sample_loss_mask")) == 0:
        found["trained"] = np.zeros_like(found["trained"])
    return found


def _texts(content: Any) -> tuple[str | None, str | None]:
    """Messages by name, or their texts in order: the first is the prompt."""
    if messages := messages_in(content):
        said = [message.get("role") == "assistant" for message in messages]
        first = said.index(True) if True in said else len(messages)
        return told(messages[:first]), told(messages[first:])
    if isinstance(content, list) and content and all(isinstance(one, str) for one in content):
        return content[0], "\n".join(content[1:])
    return None, told(content)


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


TRAINED = Kind(
    needs=_TRAINED,
    reward="rewards",
    known=_OWN,
    rollouts=_rollouts,
    note="`trainer` and `old` are NeMo-RL's `prev_logprobs`: the trainer's own pass over the batch "
    "before the update.",
)
VALIDATED = Kind(
    needs=_VALIDATED,
    reward="rewards",
    known=_OWN,
    rollouts=_rollouts,
    note="These are validation rollouts of NeMo-RL, unless their file says `train`.",
)
