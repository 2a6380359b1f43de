"""Rows of the tables `rollouts` and `tokens` from what was heard of one generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatline.errors import TraceError
from flatline.live.batch import Drawn, Padded, column, episode, hops, to_numpy
from flatline.live.texts import Texts
from flatline.live.trl.recorder.heard import HELD_OUT, Generation
from flatline.live.trl.sampler import drawn
from flatline.rollout.record import Author, Rollout

GOLD_LENGTH = 500
"""Characters of a right answer that are kept; worked solutions can be pages long."""
ENDED = ("answered", "eos", "stop")
"""What a rollout is said to end with when no limit cut it off."""
NEAR = 2
"""Tokens by which the length of a completion may differ from the limit that cut it: what is encoded
again, or left off at the end, changes the count."""
SHORT = 32
"""Limits below which it may not: an episode of a few short turns ends near them by itself."""

TOOL_RAISED = "{'error': "
"""How TRL's answer to a call that raised begins."""
Row = dict[str, Any]
Ids = tuple[tuple[int, ...], ...]
"""Prompt and completion."""
Content = tuple[bytes, bytes, float]
"""Prompt, completion and advantage of a row."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How this trainer's rows are read."""

    eos: frozenset[int]
    """Ids that end a completion, whether or not the trainer knows of them."""
    one_turn: bool
    """Whether what stands behind such an id is no turn of its own."""
    longest: int | None
    """Tokens at which the trainer cuts a completion."""
    longest_turn: int | None
    """Tokens at which the trainer has its sampler cut a turn."""
    pad: int | None
    rank: int
    group_size: int
    gold_names: Sequence[str]
    reward_names: Sequence[str]
    reward_weights: np.ndarray

    def batch(self, tensors: Mapping[str, Any]) -> Padded:
        return Padded(tensors, self.pad)


class Held:
    """One rollout between its generation and the pass that trains it."""

    def __init__(
        self, generation: Generation, row: int, batch: Padded, at: int, rewards: np.ndarray
    ) -> None:
        self.generation = generation
        self.row = row
        """Its row in the generation of this process."""
        self.data = generation.rows[row]
        self.position = generation.first + row
        self.played = episode(self.data)
        """Our own record of the episode, where our engine played it."""
        self._stands_in(batch, at)
        self.rewards = rewards
        """One per reward function, NaN where it gave none."""
        self.drawn: Drawn | None = None
        """As the sampler had it, where it was heard."""
        self.logps: np.ndarray | None = None
        self.attention: np.ndarray | None = None

    def trained_by(
        self, batch: Padded, at: int, logps: np.ndarray | None, attention: np.ndarray | None
    ) -> None:
        """From now on its tokens are those that the loss was given."""
        self._stands_in(batch, at)
        self.logps = None if logps is None else logps[at]
        self.attention = None if attention is None else attention[at]

    def _stands_in(self, batch: Padded, at: int) -> None:
        self.batch, self.at = batch, at
        """Where its tokens stand: in the generation's output, later in the batch of the loss."""
        listed = self.generation.completion_ids
        known = listed[self.row] if len(listed) > self.row else None
        self.before = batch.prompt(at)
        """Where in its padded row the prompt stands."""
        self.where = batch.completion(at, known)
        """Where in its padded row the completion stands."""
        self.prompt_ids = batch["prompt_ids"][at, self.before]
        self.ids = batch["completion_ids"][at, self.where]
        for read in ("otherwise", "authors"):
            vars(self).pop(read, None)

    def sampler(self) -> np.ndarray | None:
        """Log-probs of the completion when it was sampled."""
        given = self.batch.tokens("sampling_per_token_logps", self.at, self.where)
        if given is not None or self.drawn is None or np.isnan(self.drawn.logps).all():
            return given
        return self.drawn.logps_at(self.where.stop)

    @cached_property
    def otherwise(self) -> Row | None:
        """What the sampler had in place of what is trained: nothing where that is the same id by
        id, None where it is not known."""
        prompt: Sequence[int] | np.ndarray
        ids: Sequence[int] | np.ndarray
        if self.played is not None:
            prompt, ids = self.played.prompt_ids, self.played.completion_ids
        elif self.drawn is not None:
            prompt, ids = self.drawn.prompt_ids, self.drawn.ids_beside(self.ids)
        else:
            return None
        pairs = {
            "sampled_prompt_ids": (prompt, self.prompt_ids),
            "sampled_ids": (ids, self.ids),
        }
        return {
            name: np.array(had, dtype=np.int32)
            for name, (had, has) in pairs.items()
            if not np.array_equal(had, has)
        }

    @cached_property
    def authors(self) -> np.ndarray | None:
        """Who wrote each token, where that is known."""
        return self.batch.authors(self.at, self.where, self.played)


def hold(generation: Generation, reader: Reader) -> list[Held]:
    """The rollouts of this process that are handed on to the loss."""
    batch, size = reader.batch(generation.output), len(generation.rows)
    rewards = np.full((size, len(reader.reward_names)), np.nan)
    if generation.rewards is not None:
        rewards = to_numpy(generation.rewards)[reader.rank * size :][:size]
    rows = list(enumerate(generation.kept))
    held = [Held(generation, row, batch, at, rewards[row]) for at, row in rows]
    every = [one.ids for one in held]
    if generation.sampled is not None and len(held) < size:
        every = [np.array(ids) for ids in generation.sampled[1]]
    heard = drawn(generation.calls, every)
    for one in held if heard else ():
        one.drawn = heard[one.row]
    return held


def kept_rows(generation: Generation, batch: Padded) -> Sequence[int]:
    """Which of the sampled rows a trainer hands on, by their ids. Of rows that are alike any may
    stand for another."""
    rows = len(batch["completion_ids"])
    waiting: dict[Ids, list[int]] = {}
    for row, ids in enumerate(zip(*(generation.sampled or ((), ())), strict=True)):
        waiting.setdefault(tuple(map(tuple, ids)), []).append(row)
    try:
        return [waiting[_ids_at(batch, at)].pop(0) for at in range(rows)]
    except (KeyError, IndexError) as error:
        raise TraceError(
            f"the trainer trains {rows} of {len(generation.rows)} sampled rows, and their ids do "
            "not show which"
        ) from error


def _ids_at(batch: Padded, at: int) -> Ids:
    prompt, completion = batch.prompt(at), batch.completion(at)
    parts = batch["prompt_ids"][at, prompt], batch["completion_ids"][at, completion]
    return tuple(tuple(ids.tolist()) for ids in parts)


def found_again(batch: Padded, numbers: list[int], held: Mapping[int, Held]) -> list[int]:
    """Whose rows these are: as their numbers say, unless somebody put ids and advantages in another
    order and left the numbers, which he knows nothing of, in their places. Ids that went without
    their advantages are nobody's but those of the place."""
    known = [(at, held[number]) for at, number in enumerate(numbers) if number in held]
    if _are_alike(batch, known):
        return numbers
    mine = [_content(batch, at) for at in range(len(numbers))]
    owners: dict[Content, list[int]] = {}
    for number, one in held.items():
        owners.setdefault(_content(one.batch, one.at), []).append(number)
    if not all(row in owners for row in mine):
        return numbers
    return [owners[row].pop(0) if owners[row] else HELD_OUT for row in mine]  # copies are nobody's


def _are_alike(batch: Padded, pairs: Sequence[tuple[int, Held]]) -> bool:
    """Whether these rows of a batch say what the rollouts beside them say."""
    mine, theirs = [at for at, _ in pairs], [one.at for _, one in pairs]
    sources = {id(one.batch): one.batch for _, one in pairs}.values()
    # Mostly the loss is given the rows as they were sampled, padding and all.
    as_sampled = len(sources) == 1 and all(
        np.array_equal(batch[name][mine], source[name][theirs])
        for source in sources
        for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    )
    return as_sampled or all(_said(batch, at) == _said(one.batch, one.at) for at, one in pairs)


def _content(batch: Padded, at: int) -> Content:
    return (*_said(batch, at), float(batch.advantage[at]))


def _said(batch: Padded, at: int) -> tuple[bytes, bytes]:
    """Prompt and completion of a row."""
    prompt, completion = batch.prompt(at), batch.completion(at)
    return (
        batch["prompt_ids"][at, prompt].tobytes(),
        batch["completion_ids"][at, completion].tobytes(),
    )


def sampler_logps(batch: Padded, held: Sequence[Held]) -> np.ndarray | None:
    """The sampler's log-probs of a batch, where the trainer has them or these rollouts of it were
    heard; NaN where it has none."""
    if "sampling_per_token_logps" in batch:
        return batch["sampling_per_token_logps"]
    known = [(one, logps) for one in held if (logps := one.sampler()) is not None]
    if not known:
        return None
    found = np.full(batch["completion_ids"].shape, np.nan, dtype=np.float32)
    for one, logps in known:
        found[one.at, one.where] = logps
    return found


def total_reward(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sum as TRL takes it: what is missing counts nothing, all missing is missing."""
    total = np.nansum(rewards * weights, axis=-1)
    return np.where(np.isnan(rewards).all(axis=-1), np.nan, total)


def rollout_rows(held: Sequence[Held], reader: Reader, texts: Texts) -> list[Row]:
    """All that is known of each of these rollouts."""
    if not held:
        return []
    rewards = total_reward(np.array([one.rewards for one in held]), reader.reward_weights).tolist()
    told = texts.learn([ids for one in held for ids in (one.prompt_ids, one.ids)])
    each = zip(held, rewards, told[::2], told[1::2], strict=True)
    return [
        {**_row(one, reader), "reward": _known(reward), "prompt": prompt, "completion": completion}
        for one, reward, prompt, completion in each
    ]


def _row(one: Held, reader: Reader) -> Row:
    is_model = None if one.authors is None else one.authors == int(Author.MODEL)
    other = one.otherwise
    return {
        **_facts(one, is_model, reader),
        **(_seen(one, is_model, reader) if one.played is None else _episode(one, one.played)),
        "as_sampled": None if other is None else int(not other),
    }


def _facts(one: Held, is_model: np.ndarray | None, reader: Reader) -> Row:
    """What is known of every rollout."""
    data, ids = one.data, one.ids
    named = zip(reader.reward_names, one.rewards.tolist(), strict=True)
    answer = column(reader.gold_names)(data)
    trained = one.batch.loss_mask[one.at, one.where]
    return {
        "step": one.generation.step,
        "rank": reader.rank,
        "rollout": one.position,
        "group": one.position // reader.group_size,
        "prompt_id": one.batch.prompt_name(one.at, data),
        "hops": hops(data),
        "advantage": _known(one.batch.advantage[one.at]),
        "parts": {name: value for name, value in named if value == value},
        "prompt_tokens": len(one.prompt_ids),
        "completion_tokens": len(ids),
        "model_tokens": None if is_model is None else int(np.count_nonzero(is_model)),
        "trained_tokens": int(np.count_nonzero(trained)),
        "gold": None if answer is None else str(answer)[:GOLD_LENGTH],
    }


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _finish(ids: np.ndarray, is_model: np.ndarray | None, reader: Reader) -> str | None:
    """`stop` is neither an end token nor a known limit: a stop string, or what else its player ends
    with; or padding that the model wrote itself, which TRL takes for an end. None where no limit is
    known."""
    last = ids if reader.one_turn else ids[-1:]
    if reader.eos.intersection(last.tolist()):
        return "eos"
    if len(ids) and ids[-1] == reader.pad:
        return "stop"
    if reader.longest is None:
        return None
    foreign = np.flatnonzero(() if is_model is None else ~is_model)
    turn = len(ids) - (int(foreign[-1]) + 1 if len(foreign) else 0)
    # What is longer than a limit was not cut by it: a player of somebody's own need not know it.
    limits = ((len(ids), reader.longest), (turn, reader.longest_turn))
    cut = any(most is not None and _meets(length, most) for length, most in limits)
    return "length" if cut else "stop"


def _meets(length: int, most: int) -> bool:
    return abs(length - most) <= (NEAR if most >= SHORT else 0)


def _seen(one: Held, is_model: np.ndarray | None, reader: Reader) -> Row:
    """What there is no record of, and is seen from the tokens or the messages."""
    return {
        "weight_version": one.generation.weights,
        "finish": _finish(one.ids, is_model, reader),
        "turns": None if is_model is None else _runs(is_model),
        **_counted(one),
    }


def _episode(one: Held, played: Rollout) -> Row:
    """What our own record of an episode adds."""
    shown = {id for turn in played.turns for id in turn.documents}
    needed = one.data.get("supporting")
    return {
        "finish": played.finish.value,
        "turns": len(played.turns),
        "weight_version": played.weight_version,
        "supporting": None if needed is None else len(set(needed)),
        "supporting_seen": None if needed is None else len(shown & set(needed)),
        "documents_dropped": sum(len(turn.dropped) for turn in played.turns),
        **_events(played.events),
    }


def _counted(one: Held) -> Row:
    """Tool calls, from an environment that counts them or from the messages."""
    generation, row = one.generation, one.row
    if len(generation.events) > row:
        return _events(generation.events[row])
    said = generation.completions[row] if len(generation.completions) > row else None
    if not isinstance(said, list):
        return {}
    calls = sum(len(message.get("tool_calls") or ()) for message in said)
    authors = one.authors
    # Somebody's own player answers calls inside the tokens: TRL then makes one message of it all.
    answered = authors is None or bool((authors != Author.MODEL).any())
    if answered and not calls:
        return {"tool_calls": None}
    failed = min(calls, sum(map(_failed, said)))
    return {"tool_calls": calls - failed, "tool_errors": failed}


def _failed(message: Mapping[str, Any]) -> bool:
    """Whether it is what TRL writes in the place of a tool's answer where the call raised."""
    content = message.get("content")
    return (
        message.get("role") == "tool"
        and isinstance(content, str)
        and content.startswith(TOOL_RAISED)
    )


def _events(counts: Mapping[str, int]) -> Row:
    kinds = ("tool_calls", "tool_errors", "malformed_calls", "malformed_answers")
    return {kind: counts.get(kind, 0) for kind in kinds}


def token_row(one: Held, reader: Reader) -> Row:
    """Every token of one rollout. Arrays are views of what TRL itself keeps."""
    batch, at, where = one.batch, one.at, one.where
    prompt, start = one.before, batch["prompt_ids"].shape[1]
    attention = one.attention
    return {
        "step": one.generation.step,
        "rank": reader.rank,
        "rollout": one.position,
        "prompt_ids": one.prompt_ids,
        "prompt_attended": None if attention is None else attention[prompt].view(np.uint8),
        "ids": one.ids,
        "author": one.authors,
        "trained": batch.loss_mask[at, where].view(np.uint8),
        "attended": None if attention is None else attention[start:][where].view(np.uint8),
        "sampler": one.sampler(),
        "trainer": None if one.logps is None else one.logps[where],
        "old": batch.tokens("old_per_token_logps", at, where),
        "reference": batch.tokens("ref_per_token_logps", at, where),
        **(one.otherwise or {}),
    }


def _runs(flags: np.ndarray) -> int:
    """How many stretches of True there are."""
    return int(flags[:1].any()) + int(np.count_nonzero(flags[1:] & ~flags[:-1]))
