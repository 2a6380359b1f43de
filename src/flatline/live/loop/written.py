"""Which tokens of a batch the model was heard to write, and how likely they were when drawn."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flatline.live.watch.rows import ENDED, Shelf, write_span
from flatline.live.watch.sampling import Sample
from flatline.rollout.record import Author
from flatline.trace.tokens import UNKNOWN_AUTHOR


class Written(NamedTuple):
    """One row. Arrays have an entry for each of its tokens."""

    author_L: np.ndarray
    sampler_L: np.ndarray
    """NaN where nothing was heard."""
    begin: int
    """First token of the completion."""
    end: int
    """Behind its last one."""


def written(
    ids_BL: np.ndarray, trained_BL: np.ndarray, samples: Sequence[Sample], ends: frozenset[int]
) -> list[Written]:
    """Row by row; a token that has a loss and was not heard is taken for the model's."""
    shelf, taken = Shelf(), set[int]()
    shelf.add(samples)
    rows = []
    for ids_L, trained_L in zip(ids_BL.astype(np.int32), trained_BL, strict=True):
        spans = shelf.find(ids_L, taken)
        taken.update(id(sample) for _, sample in spans)
        rows.append(_row(ids_L, trained_L, spans, ends))
    return rows


def _row(
    ids_L: np.ndarray,
    trained_L: np.ndarray,
    spans: Sequence[tuple[int, Sample]],
    ends: frozenset[int],
) -> Written:
    author_L = np.full(len(ids_L), UNKNOWN_AUTHOR, dtype=np.uint8)
    sampler_L = np.full(len(ids_L), np.nan)
    flagged = np.flatnonzero(trained_L)
    if not spans:
        author_L[flagged] = Author.MODEL
        return Written(author_L, sampler_L, *_ends_of(flagged, len(ids_L)))
    first, end, finish = spans[0][0], 0, None
    for begin, sample in spans:
        author_L[end or begin : begin] = Author.TOOL
        end, finish = write_span(ids_L, begin, sample, ends, author_L, sampler_L)
    if len(flagged):  # what has a loss and was not sampled
        author_L[flagged[0] : first] = Author.PROMPT
        author_L[end : flagged[-1] + 1] = Author.TEMPLATE if finish == ENDED else UNKNOWN_AUTHOR
    begin, last = _ends_of(np.append(flagged, [first, end - 1]), len(ids_L))
    return Written(author_L, sampler_L, begin, last)


def _ends_of(places: np.ndarray, length: int) -> tuple[int, int]:
    """Of what lies between some places; nothing at the end of the row without any."""
    return (max(1, int(places.min())), int(places.max()) + 1) if len(places) else (length, length)
