"""From passes that trained and sequences that were sampled to the rows of a trace.

A row of a training batch is found again among the samples by the tokens in front of its completion:
padding, order and the cut into batches are the loop's own business. Who wrote a token follows: what
was sampled is the model's, what comes between two samples is not.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flatline.live.watch.gradient import Pass
from flatline.live.watch.sampling import Sample
from flatline.rollout.record import Author
from flatline.trace.tokens import UNKNOWN_AUTHOR

Row = dict[str, Any]

KEPT = 4096
"""Sampled sequences that wait to be trained; evaluations are among them."""
NEAR = 256
"""Of these, sequences with one prompt: a small dataset comes round again and again."""
ANCHOR = 16
"""Tokens in front of a completion by which it is found."""
ALIKE = 0.5
"""Share of sampled tokens at the start that a trained completion must have to be the same one."""
CLIPPED = 0.01
"""Nats by which a token moved since it was sampled, from which on a gradient of 0 may come from a
clipped ratio: usual clips begin at 0.1."""
ENDED, CUT = "eos", "length"
"""Why a completion ended: with an end token, or without."""
FAINT = 0.1
"""Of the mean weight of the heaviest row of a pass: a row below it has no advantage to speak of,
and a small KL term on some of its tokens tells nothing about its mask."""
CENTRED = 0.02
"""Share of all advantages that may be left over inside groups: rounding, and a small KL term."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """A pass on the host. Arrays have one entry per row and input token, where none is said."""

    ids: np.ndarray
    """One more than the model was given where the loss has a label behind the last."""
    attended: np.ndarray | None
    trained: np.ndarray
    weight: np.ndarray
    trainer: np.ndarray
    entropy: np.ndarray
    """At some trained positions."""
    scored: np.ndarray | None = None
    """As `trainer`, at the temperature of the loss; None where that is 1 or not yet known."""
    advantage: np.ndarray | None = None
    """As the loss was given it; None where it is read off the weights."""
    old: np.ndarray | None = None
    """The log-probs that ratios are taken to, where they are given."""
    cleared: bool = False
    """Whether what it left at the weights was cleared before the step."""

    @cached_property
    def faint(self) -> np.ndarray:
        """Rows of hardly any weight; none where the loss was given its mask."""
        if self.advantage is not None:
            return np.zeros(len(self.ids), dtype=bool)
        known = self.trained & np.isfinite(self.weight)
        total = np.where(known, np.abs(self.weight), 0.0).sum(1)
        mean = total / np.maximum(known.sum(1), 1)
        return np.asarray((mean < FAINT * mean.max()) & known.any(1))

    @classmethod
    def of(cls, one: Pass) -> "Read":
        """What a pass heard, moved from where logits stand to the tokens that they are about."""
        assert one.trained is not None
        trained = one.trained.cpu().numpy()
        ids = one.inputs.ids.cpu().numpy().astype(np.int32)
        ids = np.concatenate([ids, one.label[:, -1:].cpu().numpy().astype(np.int32)], axis=1)
        shape, begin = ids.shape, one.first + 1

        def placed(values: Any, fill: float) -> np.ndarray:
            whole = np.full(shape, fill)
            whole[:, begin:] = values.cpu().numpy()
            return whole

        weight, logp = placed(one.weight, np.nan), placed(one.logp, np.nan)
        behind = trained[:, -1].any()
        end = None if behind else -1
        flags = placed(one.trained, 0)[:, :end] != 0
        return cls(
            ids=ids[:, :end],
            attended=_attended(one, shape)[:, :end] if not one.inputs.mask_is_odd else None,
            trained=flags,
            weight=weight[:, :end],
            trainer=logp[:, :end],
            entropy=one.entropy.cpu().numpy(),
            scored=None if one.scored is one.logp else placed(one.scored, np.nan)[:, :end],
            cleared=one.cleared,
        )


def _attended(one: Pass, shape: tuple[int, ...]) -> np.ndarray:
    given = one.inputs.attended
    seen = np.ones(shape, dtype=np.uint8)
    if given is not None:
        seen[:, : given.shape[1]] = given.cpu().numpy() != 0
    return seen


class Shelf:
    """Samples that may still be trained."""

    def __init__(self) -> None:
        self._by_anchor: dict[bytes, deque[Sample]] = {}
        """By the end of their prompts; what was added to latest stands last."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            if len(sample.prompt):
                near = self._by_anchor.pop(_anchor(sample), deque())
                self._count -= len(near)
                near.append(sample)
                while len(near) > NEAR:
                    near.popleft()
                self._by_anchor[_anchor(sample)] = near
                self._count += len(near)
        while self._count > KEPT and len(self._by_anchor) > 1:
            self._count -= len(self._by_anchor.pop(next(iter(self._by_anchor))))

    def waiting(self) -> dict[tuple[int, object], list[Sample]]:
        """Those that are no rollout of the trace yet, by the group that they are compared in."""
        found: dict[tuple[int, object], list[Sample]] = {}
        for near in self._by_anchor.values():
            for sample in near:
                if sample.place is None:
                    found.setdefault(sample.key, []).append(sample)
        return found

    def find(self, ids: np.ndarray, taken: set[int]) -> list[tuple[int, Sample]]:
        """Where samples begin in a row, and which; `taken` are those of other rows of its pass."""
        found: list[tuple[int, Sample]] = []
        free = 0
        for end, near in self._near(ids):
            best = max(near, key=lambda one: _fit(one, ids, end, taken))
            if end >= free and common(best.ids, ids[end:]) >= max(1, ALIKE * len(best.ids)):
                found.append((end, best))
                free = end + len(best.ids)
        return found

    def _near(self, ids: np.ndarray) -> Iterator[tuple[int, deque[Sample]]]:
        """Places behind an anchor, and the samples that have it."""
        raw, known = ids.tobytes(), self._by_anchor
        widths = sorted({len(key) for key in known}, reverse=True)
        for end in range(4, len(raw), 4):
            for width in widths:
                if width <= end and (near := known.get(raw[end - width : end])):
                    yield end // 4, near
                    break


def _anchor(sample: Sample) -> bytes:
    return sample.prompt[-ANCHOR:].tobytes()


def _fit(sample: Sample, ids: np.ndarray, at: int, taken: set[int]) -> tuple[Any, ...]:
    same = common(sample.ids, ids[at:])
    own = _same_prompt(sample, ids, at)
    return (same == len(sample.ids), own, not sample.tokens_written, id(sample) not in taken, same)


def _same_prompt(sample: Sample, ids: np.ndarray, at: int) -> bool:
    begin = at - len(sample.prompt)
    return begin >= 0 and np.array_equal(ids[begin:at], sample.prompt)


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Tokens at the start that are the same."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


@dataclass(slots=True, kw_only=True)
class Seen:
    """One row of a training batch, and what is known of it."""

    turns: list[Sample]
    """What was sampled of it, turn by turn; empty where this model did not sample it."""
    prompt: np.ndarray
    prompt_attended: np.ndarray | None
    ids: np.ndarray
    attended: np.ndarray | None
    author: np.ndarray
    trained: np.ndarray | None
    """None where no token has a gradient: with an advantage of 0 nobody can tell."""
    sampler: np.ndarray
    trainer: np.ndarray
    weight: np.ndarray
    finish: str | None
    sampled: Row
    """`as_sampled`, and what the sampler had where it was something else."""
    advantage: float | None = None
    """As the loss was given it."""
    scored: np.ndarray | None = None
    old: np.ndarray | None = None
    place: tuple[int, int] | None = None
    """Step and number of its rollout in the trace."""
    moved_on: bool = False
    """Whether earlier updates came from the same generation: what the trainer says of it now is not
    what it said when the rollout was new."""

    @property
    def sample(self) -> Sample | None:
        """Its first turn, which stands for all of it."""
        return self.turns[0] if self.turns else None

    @property
    def model_tokens(self) -> int | None:
        return int((self.author == Author.MODEL).sum()) if self.turns else None

    @property
    def trained_tokens(self) -> int | None:
        return None if self.trained is None else int(self.trained.sum())

    @property
    def mean_weight(self) -> float:
        """Over trained tokens; 0 without any."""
        known = self.weight[np.isfinite(self.weight) & (self.weight != 0)]
        return float(known.mean()) if self.trained is not None and len(known) else 0.0

    def _scored(self) -> np.ndarray | None:
        known = self.scored is not None and not self.moved_on
        return np.asarray(self.scored, dtype=np.float32) if known else None

    def token_row(self) -> Row:
        unknown = self.author == UNKNOWN_AUTHOR
        return {
            "prompt_ids": self.prompt,
            "prompt_attended": self.prompt_attended,
            "ids": self.ids,
            "author": np.ma.array(self.author, mask=unknown).tolist(),
            "trained": None if self.trained is None else self.trained.astype(np.uint8),
            "attended": self.attended,
            "sampler": None if self.sample is None else self.sampler.astype(np.float32),
            "trainer": None if self.moved_on else self.trainer.astype(np.float32),
            "scored": self._scored(),
            "old": None if self.old is None else self.old.astype(np.float32),
            "weight": None if self.trained is None else self.weight.astype(np.float32),
            **{name: value for name, value in self.sampled.items() if name != "as_sampled"},
        }


def read_row(
    one: Read, row: int, spans: Sequence[tuple[int, Sample]], *, ends: frozenset[int], done: int
) -> Seen | None:
    """One row of a pass; None where nothing is known of it.

    `spans` are the samples in it, `ends` the ids that end one; `done` optimizer steps lie behind.
    """
    ids, trained = one.ids[row], one.trained[row] & ~one.faint[row]
    attended = None if one.attended is None else one.attended[row]
    flagged = np.flatnonzero(trained)
    if not spans and not len(flagged):
        return None
    author = np.full(len(ids), UNKNOWN_AUTHOR, dtype=np.uint8)
    sampler = np.full(len(ids), np.nan)
    at = spans[0][0] if spans else int(flagged[0])
    end, finish = (0, None) if spans else (at, None)
    for begin, sample in spans:
        author[end or begin : begin] = Author.TOOL
        end, finish = write_span(ids, begin, sample, ends, author, sampler)
    if spans and len(flagged):  # what has a loss and was not sampled
        author[flagged[0] : at] = Author.PROMPT
        author[end : flagged[-1] + 1] = Author.TEMPLATE if finish == ENDED else UNKNOWN_AUTHOR
    cut = slice(min([at, *flagged[:1]]), max([end, *(flagged[-1:] + 1)]))
    begin, told = _compared(ids, attended, at, spans)
    seen = one.advantage is None  # which tokens have a loss is known by their gradients alone
    if seen and len(flagged) and spans and done > spans[0][1].version:
        moved = np.abs(one.trainer[row] - sampler) > CLIPPED
        trained = trained | (author == Author.MODEL) & moved
    if spans and spans[0][1].own and len(flagged):
        author[_may_be_put_there(author, trained, spans[0][1], finish)] = UNKNOWN_AUTHOR
    before = slice(min(begin, cut.start), cut.start)
    return Seen(
        turns=[sample for _, sample in spans],
        prompt=ids[before],
        prompt_attended=None if attended is None else attended[before],
        ids=ids[cut],
        attended=None if attended is None else attended[cut],
        author=author[cut],
        trained=trained[cut] if len(flagged) else None,
        sampler=sampler[cut],
        trainer=one.trainer[row, cut],
        weight=np.where(one.trained[row, cut], one.weight[row, cut], 0.0),
        finish=finish,
        sampled=told,
        advantage=_advantage(one, row, trained),
        scored=None if one.scored is None else one.scored[row, cut],
        old=None if one.old is None else one.old[row, cut],
    )


def _may_be_put_there(
    author: np.ndarray, trained: np.ndarray, first: Sample, finish: str | None
) -> np.ndarray:
    """Tokens without a loss that a loop of somebody's own may have written itself: the answer of a
    tool among those that the model drew, padding behind them, a prompt that is fed one by one."""
    flagged = np.flatnonzero(trained & (author == Author.MODEL))
    at = np.arange(len(author))
    if not len(flagged):
        return np.zeros(len(author), dtype=bool)
    inside = (at > flagged[0]) & (at < flagged[-1])
    behind = (at > flagged[-1]) & (finish != ENDED)
    before = (at < flagged[0]) & (len(first.prompt) < 2)
    return np.asarray((inside | behind | before) & (author == Author.MODEL) & ~trained)


def _advantage(one: Read, row: int, trained: np.ndarray) -> float | None:
    """Of a row whose loss was given one: 0 where no token has any."""
    if one.advantage is None:
        return None
    return float(one.advantage[row, trained].mean()) if trained.any() else 0.0


def write_span(
    ids: np.ndarray,
    at: int,
    sample: Sample,
    ends: frozenset[int],
    author: np.ndarray,
    sampler: np.ndarray,
) -> tuple[int, str | None]:
    """Mark the tokens of one sample; returns where they end, and why where that is seen."""
    same = common(sample.ids, ids[at:])
    author[at : at + same], sampler[at : at + same] = Author.MODEL, sample.logps[:same]
    end, whole = at + same, same == len(sample.ids)
    if sample.finish is not None:
        return end, sample.finish if whole else None
    if not whole or sample.ended or end == len(ids):
        return end, ENDED if whole and sample.ended else None
    author[end], sampler[end] = Author.MODEL, sample.tail.logp(sample.row, int(ids[end]))
    return end + 1, ENDED if int(ids[end]) in ends else CUT if ends else None


def _compared(
    ids: np.ndarray,
    attended: np.ndarray | None,
    start: int,
    spans: Sequence[tuple[int, Sample]],
) -> tuple[int, Row]:
    """Where the prompt begins, and how what is trained compares with what was sampled."""
    hidden = 0 if attended is None or not attended.any() else int(attended.argmax())
    if not spans:
        return min(hidden, start), {}
    sample = spans[0][1]
    begin = start - len(sample.prompt)
    told: Row = {"as_sampled": 1}
    # What comes before it is padding, unless the model is told to look at it.
    more = attended is not None and attended.min() == 0 and attended[: max(begin, 0)].any()
    if more or not _same_prompt(sample, ids, start):
        begin, told = hidden, {"as_sampled": 0, "sampled_prompt_ids": sample.prompt}
    if any(_differs(one.ids, ids[at:]) for at, one in spans):
        told["as_sampled"] = 0
        if len(spans) == 1:
            told["sampled_ids"] = sample.ids
    return begin, told


def _differs(sampled: np.ndarray, trained: np.ndarray) -> bool:
    """Whether other tokens are trained. The last one of a row is mostly not given to the model: it
    is a label, and without a gradient it is not known."""
    same = common(sampled, trained)
    return same < len(sampled) and not (same == len(trained) == len(sampled) - 1)


def advantages(rows: Sequence[Seen], group: Sequence[int]) -> list[float | None]:
    """What each row was rewarded with in the loss, in the units of an advantage.

    A loss divides by the length of a row or by all tokens. Of the two, that one is undone which
    makes the advantages of a group add up to 0, as those of GRPO do; None where neither does.
    """
    if not rows:
        return []
    mean = np.array([row.mean_weight for row in rows])
    tokens = np.array([row.trained_tokens or 0 for row in rows], dtype=float)
    index = np.unique(group, return_inverse=True)[1]
    known = [mean * tokens.sum(), mean * tokens * len(rows)]
    left = [float(np.abs(np.bincount(index, one)).sum()) for one in known]
    best = int(np.argmin(left))
    if left[best] > CENTRED * float(np.abs(known[best]).sum()):
        return [None] * len(rows)
    return [float(one) for one in known[best]]
