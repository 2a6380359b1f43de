"""Rows of a trace from what verl's trainer holds of a batch and what its workers heard of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flatline.live.batch import EQUAL, Drawn
from flatline.live.texts import hashed
from flatline.live.verl.sampler import DRAWN
from flatline.rollout.record import Author

Row = dict[str, Any]

FIELDS = (
    "uid",
    "prompts",
    "responses",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "advantages",
    "rm_scores",
    "extra_fields",
    "reward_model",
)
"""Of the queue; what a run does not have is left out."""
MOVED = 0.01
"""Nats from the old log-prob, from which on a derivative of 0 may come from a clipped ratio."""
PER_TOKEN = {"old": "old_log_probs", "reference": "ref_log_prob"}


class Place(NamedTuple):
    """Where a rollout stands in the trace."""

    step: int
    number: int
    group: int


class Rollout:
    """One row of a batch."""

    def __init__(self, fields: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
        self.fields, self.tags = fields, tags
        self.prompt = _array(fields["prompts"], np.int32)
        self.ids = _array(fields["responses"], np.int32)
        self.mask = _array(fields["response_mask"], np.uint8)
        self.heard: Mapping[str, Any] | None = None
        """What the loss did with it, where it was in the first update."""
        self.drawn = _drawn((fields.get("extra_fields") or {}).get(DRAWN))

    @property
    def uid(self) -> str:
        return str(self.fields["uid"])

    @property
    def advantage(self) -> float | None:
        """The same for every token in GRPO; with others, the mean of those that carry loss."""
        given = self._tokens("advantages")
        known = None if given is None else given[self.mask != 0]
        return None if known is None or not len(known) else float(known.mean())

    @property
    def of_tokens(self) -> bool:
        """Whether its tokens have advantages of their own."""
        given = self._tokens("advantages")
        known = np.zeros(0) if given is None else given[self.mask != 0]
        return len(known) > 0 and float(np.ptp(known)) > EQUAL

    @property
    def reward(self) -> float:
        return float(_array(self.fields["rm_scores"], np.float64).sum())

    @property
    def trained(self) -> np.ndarray:
        """By what the loss did with each token. One whose ratio was clipped has no derivative, and
        without an advantage none has: the mask counts there."""
        if self.heard is None or not self.advantage:
            return self.mask
        moves = self.heard["weight"] != 0
        old = self._tokens("old_log_probs")
        clipped = self.mask * (np.abs(self.heard["logps"] - old) > MOVED if old is not None else 0)
        return np.asarray(moves | (clipped != 0)).astype(np.uint8)

    @property
    def author(self) -> np.ndarray | None:
        """What was drawn is the model's; None where the server was not heard."""
        if self.drawn is None:
            return None
        drawn = np.zeros(len(self.ids), dtype=bool)
        drawn[: len(self.drawn.logps)] = ~np.isnan(self.drawn.logps)[: len(self.ids)]
        return np.where(drawn, np.uint8(Author.MODEL), np.uint8(Author.TOOL))

    @property
    def sampler(self) -> np.ndarray | None:
        """As the server said; as verl kept it where the server was not heard, which has 0 for what
        nobody drew."""
        given = self._tokens("rollout_log_probs")
        if given is None:
            return None
        if self.drawn is not None:
            return self.drawn.logps_at(len(self.ids))
        return np.where(self.mask != 0, given, np.nan).astype(np.float32)

    def otherwise(self) -> Row:
        """What the server had in place of what is trained, and whether it had the same."""
        if self.drawn is None:
            return {"as_sampled": None}
        pairs = {
            "sampled_prompt_ids": (self.drawn.prompt_ids, self.prompt),
            "sampled_ids": (self.drawn.ids_beside(self.ids), self.ids),
        }
        other = {name: had for name, (had, has) in pairs.items() if not np.array_equal(had, has)}
        return {"as_sampled": int(not other), **other}

    def _tokens(self, name: str) -> np.ndarray | None:
        given = self.fields.get(name)
        return None if given is None else _array(given, np.float32)

    def rollout_row(self, place: Place, ends: frozenset[int], longest: int) -> Row:
        author = self.author
        model = None if author is None else int((author == Author.MODEL).sum())
        cut = len(self.ids) >= longest
        gold = (self.fields.get("reward_model") or {}).get("ground_truth")
        return {
            "step": place.step,
            "rank": 0,
            "rollout": place.number,
            "group": place.group,
            "prompt_id": hashed(self.prompt),
            "reward": self.reward,
            "advantage": self.advantage,
            "parts": _parts(self.fields),
            "weight_version": self.tags.get("min_global_steps"),
            "finish": "eos" if ends & {*self.ids[-1:].tolist()} else "length" if cut else "stop",
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.ids),
            "model_tokens": model,
            "trained_tokens": int(self.trained.sum()),
            "as_sampled": self.otherwise()["as_sampled"],
            "gold": None if gold is None else str(gold)[:500],
        }

    def token_row(self, place: Place) -> Row:
        heard = self.heard or {}
        other = {name: value for name, value in self.otherwise().items() if name != "as_sampled"}
        return {
            "step": place.step,
            "rank": 0,
            "rollout": place.number,
            "prompt_ids": self.prompt,
            "ids": self.ids,
            "author": self.author,
            "trained": self.trained,
            "sampler": self.sampler,
            "trainer": heard.get("logps"),
            "weight": heard.get("weight"),
            **{column: self._tokens(name) for column, name in PER_TOKEN.items()},
            **other,
        }


def placed(rollouts: Sequence[Rollout], step: int) -> list[tuple[Place, Rollout]]:
    """Those of one prompt together, in the order in which prompts come: verl spreads them over its
    workers."""
    groups: dict[str, list[Rollout]] = {}
    for one in rollouts:
        groups.setdefault(one.uid, []).append(one)
    pairs = [(at, one) for at, part in enumerate(groups.values()) for one in part]
    return [(Place(step, number, group), one) for number, (group, one) in enumerate(pairs)]


def join(rollouts: Sequence[Rollout], heard: Sequence[Mapping[str, Any]]) -> None:
    """Give each rollout what the loss did with it. Rows are known by their prompt and their ids; of
    two equal ones either may be either."""
    waiting: dict[tuple[str, bytes], list[Mapping[str, Any]]] = {}
    for row in heard:
        waiting.setdefault((str(row["uid"]), row["ids"].tobytes()), []).append(row)
    for one in rollouts:
        found = waiting.get((one.uid, one.ids.tobytes()))
        one.heard = found.pop(0) if found else None


def _parts(fields: Mapping[str, Any]) -> dict[str, float] | None:
    """What the reward function said beside the score."""
    told = (fields.get("extra_fields") or {}).get("reward_extra_info") or {}
    numbers = {n: float(v) for n, v in told.items() if isinstance(v, int | float | np.number)}
    return {name: value for name, value in numbers.items() if name != "score"} or None


def _drawn(turns: Any) -> Drawn | None:
    if not turns:
        return None
    first = turns[0][0]
    found = Drawn(_array(first, np.int32), np.array([], np.int32), np.array([], np.float32))
    for context, ids, logps in turns:
        known = np.zeros(len(ids)) if logps is None else logps
        found.go_on(_array(context, np.int32), _array(ids, np.int32), _array(known, np.float32))
    return found


def _array(values: Any, dtype: Any) -> np.ndarray:
    return np.asarray(values, dtype=dtype)
