"""verifiers' GRPO trainer: the ids that the server read and wrote, in place of its own rendering.

Which tokens a conversation has is decided where it is sampled. What the trainer renders from the
messages afterwards may be others.
"""

from collections.abc import Callable
from typing import Any

from flatline.errors import ConfigError
from flatline.live.hooks import Patch
from flatline.live.verifiers.played import played
from flatline.remedies.base import Tally, Undo
from flatline.rollout.record import Rollout

Row = list[list[Any]]
FIELDS = ("prompt_ids", "completion_ids", "completion_mask", "prompt_mask", "completion_logprobs")
"""Of what the environment makes of a batch, row by row."""
TOKENS = 3
"""So many of them say which tokens are trained; a row that has the same ones is left alone."""


def tokens_of_the_server(trainer: Any, tally: Tally) -> list[Undo]:
    """Prompt and turns are trained as they were sampled, and the loss is on what was written."""

    def around(process: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = process(*args, **kwargs)
        own = [list(row) for row in zip(*(getattr(found, name) for name in FIELDS), strict=True)]
        right = [_row(_known(played(state, ""))) for state in kwargs["states"]]
        longest = kwargs.get("max_seq_len", -1)
        rows = [
            mine if _is_cut(theirs, longest) or mine[:TOKENS] == theirs[:TOKENS] else theirs
            for mine, theirs in zip(own, right, strict=True)
        ]
        tally.count(rows != own)
        if rows == own:
            return found
        columns = zip(FIELDS, map(list, zip(*rows, strict=True)), strict=True)
        return found.model_copy(update=dict(columns))

    return [Patch(trainer.env, "process_env_results_vllm", around).undo]


def _row(rollout: Rollout) -> Row:
    prompt, completion = list(rollout.prompt_ids), list(rollout.completion_ids)
    unseen = [0] * len(prompt)
    return [prompt, completion, rollout.loss_mask, unseen, list(rollout.logprobs)]


def _is_cut(row: Row, longest: int) -> bool:
    """What a limit cuts stays as the trainer cut it."""
    return 0 < longest < len(row[0]) + len(row[1])


def _known(rollout: Rollout | None) -> Rollout:
    if rollout is None:
        raise ConfigError(
            "The server does not say which token ids it read and wrote, so nobody knows which "
            "should be trained.\nStart vLLM with `return_token_ids`, or sample with "
            "`flatline serve`."
        )
    return rollout
