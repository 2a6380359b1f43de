"""Plays many episodes at once with a Hugging Face causal LM, token by token.

All episodes of a batch are played together, in rounds: feed what each has not read yet, sample
until all turns have ended, run their tools, append what the chat template puts between turns. The
KV cache is kept from turn to turn, so every token is fed exactly once, the sampled end-of-turn
token included. What several episodes share so far, such as a prompt, is fed once and its cache
copied.

Which tokens come out depends on the weights, the seed, the problem and the sample number, and on
nothing else: not on the batch, its order or its size. (But for floating-point ties: the same sum in
a matrix of another shape may round differently.)
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flatline.errors import ConfigError, ModelError
from flatline.rollout.chat import ChatFormat
from flatline.rollout.loop import Plan, decode
from flatline.rollout.playable import (
    check_cache,
    max_context_of,
    refuse_virtual_tokens,
    refuse_what_cannot_be_played,
)
from flatline.rollout.record import Author, Finish, Rollout, Turn
from flatline.rollout.sampling import Sampling, uniforms
from flatline.rollout.table import Job, Play, Table, evaluating, pieces
from flatline.tasks.base import BadToolCall, Observation, Task, ToolCall

__all__ = ["Engine", "Job", "Limits"]

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN's, which plans again for every shape it meets, and here each step has another: in
bf16 on an H200 that made a batch ten times slower. Training leaves it out too: there, with padded
rows, its gradients were NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode ends if the model does not end it."""

    max_turns: int = 8
    """Turns of the model."""
    max_new_tokens: int = 256
    """Tokens of one turn, its end-of-turn token included."""
    max_context: int | None = None
    """Tokens of prompt and completion together; `None` takes what the model was built for."""
    max_prompt: int | None = None
    """Tokens that a turn may see before it writes. Documents that would exceed it are left out, the
    last first; where none would be left, the episode ends."""
    max_completion_tokens: int | None = None
    """Tokens after the prompt, whoever wrote them; `None` for no limit but the context."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value} must be at least 1.")


class Engine:
    """Plays episodes of one task with one model.

    `model` is a live model, or anything with `.model` and `.version` such as a `WeightCopy`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        task: Task,
        *,
        sampling: Sampling,
        limits: Limits,
        chat: ChatFormat | None = None,
        max_batch: int | None = None,
    ) -> None:
        if max_batch is not None and max_batch < 1:
            raise ConfigError(f"--max-batch {max_batch} must be at least 1.")
        self._weights = model
        self.task = task
        self.sampling = sampling
        self.limits = limits
        self.max_batch = max_batch
        self.tokenizer = tokenizer
        refuse_virtual_tokens(model)
        self.max_context = max_context_of(self.model, limits.max_context)
        refuse_what_cannot_be_played(self.model, self.max_context)
        self.chat = chat or ChatFormat(tokenizer, task.tools)
        self._eos = self.chat.eos_ids | eos_of(self.model)
        self._suffixes: dict[Any, tuple[list[int], list[Author]]] = {}
        """What follows the turn that was just played, by what the tools said."""
        with evaluating(self.model):
            check_cache(self.model)

    @property
    def model(self) -> Any:
        """The model that is sampled from, without a PEFT wrapper (its layers hold the adapters)."""
        model = self._weights.model if hasattr(self._weights, "version") else self._weights
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def weight_version(self) -> int:
        return int(getattr(self._weights, "version", 0))

    def play(
        self,
        jobs: Sequence[Job],
        *,
        seed: int,
        on_done: Callable[[Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Play every job; rollouts come back in the order of the jobs."""
        done: dict[int, Rollout] = {}
        prompts: dict[str, list[int]] = {}

        def ended(play: Play, rollout: Rollout) -> None:
            done[play.index] = rollout
            if on_done:
                on_done(rollout)

        while left := [i for i in range(len(jobs)) if i not in done]:
            for batch in _batches([jobs[i] for i in left], self.max_batch):
                plays = [self._start(left[k], jobs[left[k]], prompts) for k in batch]
                if not self._has_room(plays, seed, ended):
                    break
        return [done[i] for i in range(len(jobs))]

    def _has_room(
        self, plays: list[Play], seed: int, ended: Callable[[Play, Rollout], None]
    ) -> bool:
        """Play to the end. False where memory ran out: from then on half as many are in play, and
        what has not ended is played again, which gives the same tokens."""
        try:
            with evaluating(self.model), sdpa_kernel(KERNELS):
                for play, finish, final in self._play_batch(plays, seed):
                    ended(play, self._rollout(play, finish, final))
        except torch.OutOfMemoryError as error:
            if len(plays) == 1:
                raise ModelError(
                    "Memory ran out with a single rollout.\n"
                    "Sampling fewer at once cannot help.\n"
                    "Shorten `--max-context`, or free memory on the device."
                ) from error
            self.max_batch = len(plays) // 2
            print(
                f"flatline: memory ran out with {len(plays)} rollouts at once; from here on "
                f"{self.max_batch} are sampled at once. The tokens are the same. "
                f"`--max-batch {self.max_batch}` starts there.",
                file=sys.stderr,
            )
            return False
        return True

    def _start(self, index: int, job: Job, prompts: dict[str, list[int]]) -> Play:
        id = job.problem.id
        if id not in prompts:
            prompts[id] = self.chat.prompt_ids(self.task.messages(job.problem))
            if len(prompts[id]) >= self.max_context:
                raise ConfigError(
                    f"The prompt of problem {id!r} has {len(prompts[id])} tokens; the context has "
                    f"{self.max_context}.\nThe model could not write a single token.\n"
                    "Raise `--max-context`, or leave the problem out."
                )
            most = self.limits.max_prompt
            if most is not None and len(prompts[id]) > most:
                raise ConfigError(
                    f"The prompt of problem {id!r} has {len(prompts[id])} tokens; the first turn "
                    f"may see {most}.\nIts question is never cut.\n"
                    f"Type `--max-prompt-length {len(prompts[id])}` or more."
                )
        return Play(job, index, self.task.episode(job.problem), prompts[id])

    def _play_batch(
        self, plays: list[Play], seed: int
    ) -> Iterator[tuple[Play, Finish, str | None]]:
        """Play to the end, yielding each episode as it ends, with its final message."""
        table = Table(self.model, plays)
        while table.plays:
            ended = self._sample(table, seed)
            self._suffixes.clear()
            going = set()
            for play in table.plays:
                finish, final = self._after_turn(play, ended=play in ended)
                if finish is None:
                    going.add(play)
                else:
                    yield play, finish, final
            table.keep(going)

    @torch.inference_mode()
    def _sample(self, table: Table, seed: int) -> set[Play]:
        """Let every play write a turn. Who ended it by a token of its own."""
        rooms = {play: min(self.limits.max_new_tokens, self._room(play)) for play in table.plays}
        before = {play: len(play.completion_ids) for play in table.plays}
        uniforms_NB = self._uniforms(table.plays, max(rooms.values()), seed)
        ended = decode(table, Plan(rooms, uniforms_NB, self.sampling, self._eos))
        for play in table.plays:
            written = len(play.completion_ids) - before[play]
            play.authors += [Author.MODEL] * written
            play.sampled += written
            # The last sampled token, usually the end of the turn, is still to be fed.
            play.fed = len(play) - 1
        return ended

    def _room(self, play: Play) -> int:
        """Tokens that the play may still grow by, whoever writes them."""
        room = self.max_context - len(play)
        if self.limits.max_completion_tokens is not None:
            room = min(room, self.limits.max_completion_tokens - len(play.completion_ids))
        return room

    def _uniforms(self, plays: Sequence[Play], n: int, seed: int) -> Tensor:
        """The next `n` random numbers of every play."""
        streams_BN = [
            uniforms(seed, play.job.problem.id, play.job.sample, play.sampled + n)[play.sampled :]
            for play in plays
        ]
        return torch.from_numpy(np.stack(streams_BN, axis=1))

    def _after_turn(self, play: Play, *, ended: bool) -> tuple[Finish | None, str | None]:
        """Record the turn and run its tools: why the episode is over, if it is, and its answer."""
        ids = play.completion_ids[play.turn_start :]
        text = self.tokenizer.decode(
            ids[:-1] if ended else ids,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        turn = Turn(text=text)
        play.turns.append(turn)
        if not ended:
            return Finish.TURN_LENGTH, text
        calls = self.chat.parse(text)
        if not calls:
            return Finish.ANSWERED, text
        if len(play.turns) == self.limits.max_turns:
            return Finish.TURNS, None
        found = [play.episode.observe(call) for call in calls]
        shown, suffix = self._fitted(play, found, calls)
        turn.observations = [observation.text for observation in shown]
        turn.documents = [id for observation in shown for id in observation.documents]
        turn.dropped = [
            id
            for before, after in zip(found, shown, strict=True)
            for id in before.documents[len(after.documents) :]
        ]
        if suffix is None:
            return Finish.CONTEXT, None
        play.append(*suffix)
        return None, None

    def _fitted(
        self, play: Play, found: list[Observation], calls: Sequence[ToolCall | BadToolCall]
    ) -> tuple[list[Observation], tuple[list[int], list[Author]] | None]:
        """What the next turn is shown and its tokens; no tokens where nothing fits."""
        shown = list(found)
        while True:
            suffix = self._suffix([observation.text for observation in shown], calls)
            most = self.limits.max_prompt
            if most is None or len(play) + len(suffix[0]) <= most:
                return shown, None if len(suffix[0]) >= self._room(play) else suffix
            spare = [i for i, observation in enumerate(shown) if len(observation.pieces) > 1]
            if not spare:
                return shown, None
            shown[spare[-1]] = shown[spare[-1]].without_last()

    def _suffix(
        self, texts: list[str], calls: Sequence[ToolCall | BadToolCall]
    ) -> tuple[list[int], list[Author]]:
        """What follows a turn. Plays of a problem often ask for the same: it is encoded once."""
        names = tuple(call.name if isinstance(call, ToolCall) else None for call in calls)
        key = (tuple(texts), names)
        if key not in self._suffixes:
            self._suffixes[key] = self.chat.suffix(texts, calls)
        return self._suffixes[key]

    def _rollout(self, play: Play, finish: Finish, final: str | None) -> Rollout:
        score = play.episode.score(final)
        return Rollout(
            problem_id=play.job.problem.id,
            sample=play.job.sample,
            prompt_ids=list(play.prompt_ids),
            completion_ids=play.completion_ids,
            authors=play.authors,
            logprobs=play.logprobs,
            turns=play.turns,
            finish=finish,
            score=score,
            events=Counter(play.episode.events),
            weight_version=self.weight_version,
        )


def _batches(jobs: Sequence[Job], size: int | None) -> list[list[int]]:
    """Indices of the jobs to play together. Plays of a problem share a prompt: they stay close."""
    groups: dict[str, list[int]] = {}
    for i, job in enumerate(jobs):
        groups.setdefault(job.problem.id, []).append(i)
    if size is None:
        return [[i for group in groups.values() for i in group]] if jobs else []
    batches: list[list[int]] = []
    for group in groups.values():
        for piece in (group[columns] for columns in pieces(len(group), size)):
            if not batches or len(batches[-1]) + len(piece) > size:
                batches.append([])
            batches[-1] += piece
    return batches


def eos_of(model: Any) -> frozenset[int]:
    """End-of-turn ids that the model's generation config names."""
    ids: int | Iterable[int] | None = getattr(
        getattr(model, "generation_config", None), "eos_token_id", None
    )
    return frozenset([ids] if isinstance(ids, int) else ids or [])
