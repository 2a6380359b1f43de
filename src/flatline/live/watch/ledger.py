"""The tables of a watched run, written step by step by the thread that writes."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np

from flatline.live.texts import Texts, Vocabulary, hashed
from flatline.live.watch.drawn import EVEN, Told
from flatline.live.watch.rows import (
    CUT,
    ENDED,
    KEPT,
    Read,
    Row,
    Seen,
    Shelf,
    advantages,
    read_row,
)
from flatline.live.watch.sampling import Sample
from flatline.trace.writer import Sink

EQUAL = 1e-6
"""Rewards that differ by less are equal."""

MOVED, MOVED_TOKENS = 1e-3, 32
"""Nats by which tokens must have moved, and how many there must be, for a slope over them."""
LINE = 0.9
"""Share of what differs in the weights that the slope must account for."""
CERTAIN = 0.01
"""Nats of a token that is nearly sure: its weight is a small number divided by another."""


class Ledger:
    """Joins what was sampled with what was trained."""

    def __init__(self, sink: Sink, tokenizer: Any, ends: frozenset[int]) -> None:
        self._sink, self._ends = sink, ends
        known = tokenizer is not None
        self._vocabulary = Vocabulary(tokenizer) if known else None
        self._texts = Texts(tokenizer) if known else None
        self._shelf = Shelf()
        self._drawn = Told(lambda **known: sink.update_run(drawn=known))
        self._others: dict[bytes, None] = {}
        """Rows that another sampler wrote and that are recorded; the latest."""

    def sampled(self, samples: Iterable[Sample]) -> None:
        self._shelf.add(samples)

    def stepped(
        self, step: int, passes: Sequence[Read], facts: Row, left_out: Iterable[Sample] = ()
    ) -> None:
        """One optimizer step, with the passes that it was made of; `left_out` was sampled for it
        and is trained by no step."""
        read = [(one, self._read(one, step - 1)) for one in passes]
        seen = [row for _, rows in read for row in rows]
        metrics = _cleared(read) | _ratio_slope(seen, step)
        if metrics:
            facts = {**facts, "metrics": {**(facts.get("metrics") or {}), **metrics}}
        for row in seen:
            row.moved_on = any(turn.place is not None for turn in row.turns)
        fresh = [row for row in seen if self._is_new(row)]
        self._count_drawn(fresh)
        rows = self._rollouts(step, fresh, left_out)
        self._sink.write("rollouts", rows)
        tokens = [self._tokens(row) for row in fresh]
        self._sink.write("tokens", tokens)
        if self._vocabulary is not None:
            self._sink.write("vocabulary", self._vocabulary.rows(tokens))
        self._sink.write(
            "steps", [{"step": step, **_rewards(rows), **_trained(seen, passes), **facts}]
        )

    def _read(self, one: Read, done: int) -> list[Seen]:
        taken: set[int] = set()
        found = []
        for row, ids in enumerate(one.ids):
            spans = self._shelf.find(ids, taken)
            taken.update(id(sample) for _, sample in spans)
            seen = read_row(one, row, spans, ends=self._ends, done=done)
            if seen is not None:
                found.append(seen)
        return found

    def _is_new(self, row: Seen) -> bool:
        """Whether its tokens are not recorded yet: several passes may train one batch."""
        if row.sample is not None:
            new = not row.sample.tokens_written
            row.sample.tokens_written = True
            return new
        key = row.prompt.tobytes() + row.ids.tobytes()
        new = key not in self._others
        self._others[key] = None
        if len(self._others) > KEPT:
            del self._others[next(iter(self._others))]
        return new

    def _count_drawn(self, fresh: Sequence[Seen]) -> None:
        """What was drawn in the generations that these rows are of."""
        sampled = [row for row in fresh if row.turns and row.trained is not None]
        tails = {id(turn.tail): turn.tail for row in sampled for turn in row.turns}
        fits = [tail.fits for tail in tails.values() if tail.fits is not None]
        for tail in tails.values():
            tail.fits = None
        whole = [bool(row.trained.all()) for row in sampled if row.trained is not None]
        self._drawn.trained(fits, whole, [_weighs_evenly(row) for row in sampled])

    def _rollouts(self, step: int, fresh: Sequence[Seen], left_out: Iterable[Sample]) -> list[Row]:
        """Rows of all that is compared with what this step trains first, in groups."""
        for row in fresh:
            _hand_back(row)
        now = [row for row in fresh if row.sample is None or row.sample.place is None]
        numbers = count()
        groups: dict[Any, int] = {}
        group = [groups.setdefault(_key(row), len(groups)) for row in now]
        for row in now:
            row.place = (step, next(numbers))
            for turn in row.turns:
                turn.place = row.place
        others = self._siblings(step, groups, numbers)
        # A group that later steps train as well does not add up to anything yet.
        gained = [None] * len(now) if others else advantages(now, group)
        gained = [
            row.advantage if row.advantage is not None else one
            for row, one in zip(now, gained, strict=True)
        ]
        rows = [
            {**self._trained_row(row), "group": at, "advantage": advantage}
            for row, at, advantage in zip(now, group, gained, strict=True)
        ]
        rows += others
        rows += self._untrained(step, left_out, groups, numbers)
        self._as_text(rows)
        return rows

    def _siblings(self, step: int, groups: dict[Any, int], numbers: Any) -> list[Row]:
        """The rest of each group, which later steps or none will train: groups stay whole."""
        waiting = self._shelf.waiting()
        rows = []
        for key, at in groups.items():
            samples = waiting.get(key, [])
            paid = any(sample.reward is not None for sample in samples)
            for sample in samples:
                if sample.reward is not None or not paid:
                    sample.place = (step, next(numbers))
                    rows.append({**self._sampled_row(sample), "group": at})
        return rows

    def _untrained(
        self, step: int, samples: Iterable[Sample], groups: dict[Any, int], numbers: Any
    ) -> list[Row]:
        """Whole groups of which no step trains anything."""
        rows = []
        for sample in samples:
            if sample.place is None:
                sample.place = (step, next(numbers))
                group = groups.setdefault(sample.key, len(groups))
                rows.append({**self._sampled_row(sample), "group": group})
        return rows

    def _trained_row(self, row: Seen) -> Row:
        sample = row.sample
        known = {} if sample is None else self._of(sample)
        return {
            **known,
            **dict(zip(("step", "rollout"), row.place or (), strict=False)),
            "rank": 0,
            "prompt_id": hashed(row.prompt if sample is None else sample.prompt),
            "finish": row.finish,
            "turns": len(row.turns) or None,
            "prompt_tokens": len(row.prompt),
            "completion_tokens": len(row.ids),
            "model_tokens": row.model_tokens,
            "trained_tokens": row.trained_tokens,
            "as_sampled": row.sampled.get("as_sampled"),
            "prompt": row.prompt,
            "completion": row.ids,
        }

    def _sampled_row(self, sample: Sample) -> Row:
        """Of a sequence that is not trained yet; what ends it may never have been seen."""
        length = len(sample.ids) + (not sample.ended)
        return {
            **self._of(sample),
            **dict(zip(("step", "rollout"), sample.place or (), strict=False)),
            "rank": 0,
            "prompt_id": hashed(sample.prompt),
            "finish": sample.finish or (ENDED if sample.ended else None),
            "turns": 1,
            "prompt_tokens": len(sample.prompt),
            "completion_tokens": length,
            "model_tokens": length,
            "prompt": sample.prompt,
            "completion": sample.ids,
        }

    def _of(self, sample: Sample) -> Row:
        known = {"reward": sample.reward, "parts": sample.parts, "gold": sample.gold}
        return {**known, "weight_version": sample.version}

    def _as_text(self, rows: Sequence[Row]) -> None:
        """Ids become texts; without a tokenizer they are left out."""
        told = [(row, name, row.pop(name)) for row in rows for name in ("prompt", "completion")]
        if self._texts is None:
            return
        self._texts.learn(ids for _, _, ids in told)
        for row, name, ids in told:
            row[name] = self._texts.of(ids)
        self._texts.forget()

    def _tokens(self, row: Seen) -> Row:
        place = row.place if row.sample is None else row.sample.place
        step, number = place or (0, 0)
        return {"step": step, "rank": 0, "rollout": number, **row.token_row()}


def _weighs_evenly(row: Seen) -> bool:
    known = row.weight[np.isfinite(row.weight) & (row.weight != 0)]
    return len(known) > 0 and float(np.ptp(known)) <= EVEN * abs(float(known.mean()))


def _hand_back(row: Seen) -> None:
    """What the loop said of a later turn is about the whole rollout."""
    for turn in row.turns[1:]:
        first = row.turns[0]
        first.reward = turn.reward if first.reward is None else first.reward
        first.parts, first.group = first.parts or turn.parts, first.group or turn.group
        first.gold = first.gold or turn.gold


def _cleared(read: Sequence[tuple[Read, Sequence[Seen]]]) -> dict[str, float]:
    """Rows that the model sampled and whose gradient no pass brought to the step; none is said."""
    lost, kept = (
        {id(row.sample) for one, rows in read if one.cleared is gone for row in rows if row.sample}
        for gone in (True, False)
    )
    if not lost - kept:
        return {}
    return {"rows_cleared": float(len(lost - kept)), "rows_kept": float(len(kept))}


def _ratio_slope(seen: Sequence[Seen], step: int) -> dict[str, float]:
    """Of rows that an update moved since they were sampled: by how many nats the weight of a token
    grows inside its row for each nat by which it became more likely. Only where a line fits."""
    again = [row for row in seen if row.sample is not None and row.sample.version < step - 1]
    points = [_moved(row) for row in again]
    moved, grown = (np.concatenate([np.zeros(0), *(one[at] for one in points)]) for at in (0, 1))
    across, up = float(moved @ moved), float(grown @ grown)
    if len(moved) < MOVED_TOKENS or across < MOVED**2 * len(moved) or not up:
        return {}
    both = float(moved @ grown)
    return {"ratio_slope": both / across} if both**2 > LINE * across * up else {}


def _moved(row: Seen) -> tuple[np.ndarray, np.ndarray]:
    """Of each token with a weight, less the mean of its row: nats by which it became more likely,
    and the logarithm of its weight."""
    known = np.isfinite(row.weight) & (row.weight != 0) & np.isfinite(row.sampler - row.trainer)
    known &= row.trainer < -CERTAIN
    if not known.any():
        return np.zeros(0), np.zeros(0)
    moved, size = (row.trainer - row.sampler)[known], np.log(np.abs(row.weight[known]))
    return moved - moved.mean(), size - size.mean()


def _key(row: Seen) -> Any:
    return (-1, row.prompt.tobytes()) if row.sample is None else row.sample.key


def _rewards(rows: Sequence[Row]) -> Row:
    """What the rewards of new rollouts come to, group by group."""
    groups: dict[int, list[float]] = {}
    for row in rows:
        if row.get("reward") is not None:
            groups.setdefault(row["group"], []).append(row["reward"])
    if not groups:
        return {}
    several = [np.array(group) for group in groups.values() if len(group) > 1]
    return {
        "reward": float(np.mean([reward for group in groups.values() for reward in group])),
        "reward_std_within": _mean([float(group.std(ddof=1)) for group in several]),
        "zero_std_share": _mean([float(np.ptp(group) < EQUAL) for group in several]),
    }


def _trained(seen: Sequence[Seen], passes: Sequence[Read]) -> Row:
    """What is known of the tokens that a step trained."""
    known = [row for row in seen if row.trained is not None]
    gaps = [np.abs(row.sampler - row.trainer)[row.trained] for row in known if not row.moved_on]
    gap = np.concatenate(gaps) if gaps else np.zeros(0)
    gap = gap[np.isfinite(gap)]
    entropy = np.concatenate([one.entropy for one in passes] or [np.zeros(0)])
    ends = [row.finish for row in seen if row.finish is not None]
    return {
        "logprob_gap": _mean(gap),
        "logprob_gap_max": float(gap.max()) if len(gap) else None,
        "entropy": _mean(entropy),
        "completion_length": _mean([len(row.ids) for row in seen]),
        "truncated_share": _mean([end == CUT for end in ends]),
    }


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None
