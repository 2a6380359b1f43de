"""What would spoil a warm start is found before it costs minutes."""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatline.errors import ConfigError, DataError, ModelError
from flatline.rollout.chat import JSON, ChatFormat
from flatline.rollout.record import Rollout
from flatline.rollout.writable import unwritable
from flatline.tasks.base import Problem
from flatline.training.arguments import world_size
from flatline.training.run import refuse_unwritable

FILE = "warmstart.json"
"""What a finished warm start leaves in its folder."""
MOST_LEFT_OUT = 0.5
"""Share of the plays that may be left out before it is an error."""


def refuse_what_cannot_be_done(folder: Path) -> None:
    if world_size() > 1:
        raise ConfigError(
            f"A warm start runs in one process, and the launcher started {world_size()}.\n"
            "Each would write the same folder.\nStart it without `accelerate launch`."
        )
    if (folder / FILE).exists():
        raise ConfigError(
            f"{folder} holds a finished warm start ({FILE}).\n"
            "It would be lost.\nGive another --output-dir, or delete the folder."
        )
    refuse_unwritable(folder)


def refuse_seen(problems: Sequence[Problem], heldout: Sequence[Problem]) -> None:
    """A model that has seen the answers does well on them, and that says nothing."""
    questions = {problem.question for problem in problems}
    seen = [problem.id for problem in heldout if problem.question in questions]
    if seen:
        raise ConfigError(
            f"{len(seen)} of {len(heldout)} held-out problems are training problems too, such as "
            f"{seen[0]!r}.\nTheir score would not be a held-out score.\n"
            "Give others with `--eval-datasets`."
        )


def refuse_too_few(plays: Sequence[Rollout], left_out: Counter[str]) -> None:
    if plays and left_out.total() <= MOST_LEFT_OUT * (len(plays) + left_out.total()):
        return
    reason, count = left_out.most_common(1)[0]
    raise DataError(
        f"{left_out.total()} of {len(plays) + left_out.total()} episodes cannot be imitated, "
        f"{count} of them because: {reason}.\n"
        "What is left would teach the easy problems only.\n"
        "Raise the limit that is named, or choose another `--retriever`, such as hybrid."
    )


def refuse_unwritable_tokens(model: Any, chat: ChatFormat) -> None:
    """Adapters below the output layer cannot teach what the layer cannot tell apart."""
    found = unwritable(model, chat)
    if found:
        told = ", ".join(f"{text!r} ({count} others)" for text, count in found.items())
        raise ModelError(
            f"The model cannot distinguish tokens of its chat template from others, because their "
            f"rows of the output layer are the same: {told}.\n"
            "It would imitate every episode and still write another token.\n"
            f"Type `--chat-template {JSON}`, which writes calls in plain text, or `--no-peft`, "
            "which trains these rows too."
        )


def refuse_full_disk(model: Any, folder: Path) -> None:
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"The model takes {needed / 2**20:.0f} MiB, and {folder} has {free / 2**20:.0f} MiB "
            "free.\nThe warm start would be lost when it is saved.\n"
            "Make room, or give another --output-dir."
        )
