"""Ways into a live GRPOTrainer that faults share: what was sampled, who is trained, what is earned.

Methods are wrapped on the trainer itself, never on its class: other trainers stay healthy. `wrap`
takes what is there, so faults can be planted on top of each other and of anything else.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from itertools import groupby
from typing import Any, NamedTuple

from torch import nn

from flatline.errors import ConfigError
from flatline.live.hooks import Patch
from flatline.live.trl.grpo import GrpoTrainer

Rewards = list[float | None]
Mask = list[int]

FIELDS = 8
"""Values that TRL's `_generate` returns."""
PROMPT_IDS, COMPLETION_IDS, MASK, LOGPROBS = 0, 1, 2, 4
"""Where in them the tokens of each rollout stand."""


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let `around(inner, ...)` answer calls of the method `owner.name`."""
    if getattr(owner, name, None) is None:
        raise ConfigError(
            f"A {type(owner).__name__} has no `{name}`, which this fault changes.\n"
            "Faults are planted in a GRPOTrainer of TRL 1.16 (see constraints.txt)."
        )
    Patch(owner, name, around)


# -- what was sampled -------------------------------------------------------------------------


class Sampled(NamedTuple):
    """One rollout as it reaches the trainer."""

    messages: Any
    """The conversation it started from."""
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: Mask
    """1 on the completion tokens that carry loss."""
    logprobs: list[float] | None
    """The sampler's, per completion token."""


def edit_rollouts(trainer: GrpoTrainer, edit: Callable[[Sampled], Sampled]) -> None:
    """Change every rollout between the sampler and the trainer."""

    def generate(inner: Any, prompts: Any) -> Any:
        found = list(inner(prompts))
        _refuse_other_version(found)
        edited = [edit(rollout) for rollout in _rollouts(prompts, found)]
        found[PROMPT_IDS] = [rollout.prompt_ids for rollout in edited]
        found[COMPLETION_IDS] = [rollout.completion_ids for rollout in edited]
        found[MASK] = [rollout.mask for rollout in edited]
        if found[LOGPROBS] is not None:
            found[LOGPROBS] = [rollout.logprobs for rollout in edited]
        return tuple(found)

    wrap(trainer, "_generate", generate)


def edit_masks(trainer: GrpoTrainer, edit: Callable[[Mask], Mask]) -> None:
    """Change which completion tokens carry loss."""
    edit_rollouts(trainer, lambda rollout: rollout._replace(mask=edit(rollout.mask)))


def _rollouts(prompts: Any, found: Sequence[Any]) -> list[Sampled]:
    masks = found[MASK] or [[1] * len(ids) for ids in found[COMPLETION_IDS]]
    logprobs = found[LOGPROBS] or [None] * len(masks)
    rows = zip(prompts, found[PROMPT_IDS], found[COMPLETION_IDS], masks, logprobs, strict=True)
    return [
        Sampled(messages, list(prompt), list(completion), list(mask), logprob)
        for messages, prompt, completion, mask, logprob in rows
    ]


def _refuse_other_version(found: Sequence[Any]) -> None:
    if len(found) != FIELDS:
        raise ConfigError(
            f"TRL's `_generate` returned {len(found)} values; TRL 1.16 returns {FIELDS}.\n"
            "The fault would land in the wrong place.\nUse the versions of constraints.txt."
        )


def needs_turns(trainer: GrpoTrainer, name: str) -> None:
    """Refuse a trainer whose completions hold nothing but what the model wrote."""
    if not (getattr(trainer, "tools", None) or getattr(trainer, "rollout_func", None)):
        raise ConfigError(
            f"The fault {name} needs several turns, and this trainer has no tools.\n"
            "It would change nothing.\nPlant it in a run with tools, such as `--task musique`."
        )


def runs(mask: Mask) -> list[range]:
    """Positions of the turns that carry loss: unbroken runs of ones."""
    found, at = [], 0
    for value, group in groupby(mask):
        length = len(list(group))
        if value:
            found.append(range(at, at + length))
        at += length
    return found


def without(mask: Mask, positions: Sequence[int]) -> Mask:
    """The mask with zeros at the positions."""
    gone = set(positions)
    return [0 if i in gone else value for i, value in enumerate(mask)]


# -- what is earned ---------------------------------------------------------------------------


def edit_rewards(
    trainer: GrpoTrainer, edit: Callable[[Rewards, dict[str, Any]], Rewards], *, every: bool = False
) -> None:
    """Change what the reward functions return, those without a weight only if `every` is set;
    `edit` also gets their arguments."""
    weights = trainer.reward_weights.tolist()
    for i, function in enumerate(trainer.reward_funcs):
        if not weights[i] and not every:
            continue
        if isinstance(function, nn.Module) or iscoroutinefunction(function):
            raise ConfigError(
                f"The reward {trainer.reward_func_names[i]} is a model or a coroutine.\n"
                "Reward faults are planted in plain functions only."
            )
        trainer.reward_funcs[i] = _edited(function, edit)


def _edited(function: Any, edit: Callable[[Rewards, dict[str, Any]], Rewards]) -> Any:
    @wraps(function)
    def outer(**batch: Any) -> Rewards:
        return edit(list(function(**batch)), batch)

    return outer


def problem_keys(batch: dict[str, Any]) -> list[str]:
    """What tells the problems of a batch apart: their ids, or their prompts."""
    return [str(key) for key in batch.get("problem_id") or batch["prompts"]]


# -- shares -----------------------------------------------------------------------------------


def spread(n: int, share: float) -> list[bool]:
    """`n` marks, of which every beginning has its share, without randomness."""
    return [int((i + 1) * share) > int(i * share) for i in range(n)]


def place(text: str) -> float:
    """A number in [0, 1) that belongs to the text."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).digest()
    return int.from_bytes(digest, "little") / 2**48
