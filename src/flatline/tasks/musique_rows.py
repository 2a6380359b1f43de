"""Rows of MuSiQue in the official schema: reading, checking, and what a problem is."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flatline.errors import DataError
from flatline.tasks import scoring
from flatline.tasks.base import Problem
from flatline.tasks.datasets import LAB, DatasetSpec, Row, read_rows, slice_bounds
from flatline.tasks.retrieval import Paragraph

UNANSWERABLE = "unanswerable"
"""Gold answer of a problem whose paragraphs do not hold the answer."""

TWIN_SUFFIX = "__unanswerable"
"""Ends the id of an unanswerable problem."""

_CONFIGS = ("answerable", "full")

_REFERENCE = re.compile(r"#(\d{1,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step of the decomposition."""

    question: str
    """The sub-question; `#1` stands for the answer of the first hop."""
    answer: str
    """Its answer."""
    support: int | None
    """Id of the paragraph that answers it; None where that paragraph was taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MusiqueProblem(Problem):
    """One MuSiQue question with its documents."""

    aliases: tuple[str, ...]
    """Other answers that count as right."""
    paragraphs: tuple[Paragraph, ...]
    """The documents, in the order of the file, without those that `noise` dropped."""
    decomposition: tuple[Hop, ...]
    """The hops, in an order in which they can be answered."""
    answerable: bool
    """Whether the documents hold the answer."""
    config: str
    """`full` where the model has to reckon with unanswerable questions."""

    @property
    def supporting(self) -> frozenset[int]:
        """Ids of the paragraphs that answer a hop."""
        return frozenset(p.idx for p in self.paragraphs if p.is_supporting)

    @property
    def accepted(self) -> tuple[str, ...]:
        """Every text that counts as the answer."""
        return scoring.accepted_answers(self.answer, self.aliases)

    def sub_questions(self) -> list[str]:
        """The question of each hop, with the answers of earlier hops filled in."""
        known: list[str] = []
        questions = []
        for hop in self.decomposition:
            questions.append(_fill_in(hop.question, known))
            known.append(hop.answer)
        return questions


Placed = tuple[str, MusiqueProblem]
"""A problem, and where it was found."""


def problems_of(spec: DatasetSpec, split: str, config: str) -> Sequence[Placed]:
    if spec.path != LAB:
        rows = read_rows(spec, split=split, default_config=config)
        return [(row.place, problem_from(row, config)) for row in rows]
    from flatline.tasks import world  # the generator is not needed for real data

    name = spec.split_or(split)
    if name not in world.SIZES:
        raise DataError(
            f"The lab has no split `{name}` (in the spec `{spec.text}`).\n"
            f"Choose one of {', '.join(world.SIZES)}."
        )
    return _of_lab(name, *slice_bounds(spec, world.SIZES[name]), config)


@lru_cache(maxsize=4)
def _of_lab(split: str, start: int, stop: int, config: str) -> Sequence[Placed]:
    """Made once: the runs of an experiment, or of the demo, ask for the same ones again."""
    from flatline.tasks import world

    made = world.rows(split, start, stop, config=config)
    rows = (Row(f"{LAB}[{split}]", number, row) for number, row in enumerate(made, start + 1))
    return [(row.place, problem_from(row, config)) for row in rows]


def config_of(spec: DatasetSpec) -> str:
    config = spec.config or _CONFIGS[0]
    if config not in _CONFIGS:
        raise DataError(
            f"MuSiQue has no config `{config}` (in the spec `{spec.text}`).\n"
            f"Choose one of {', '.join(_CONFIGS)}, or leave it out: `path,,split`."
        )
    return config


def refuse_duplicate(place: str, problem: MusiqueProblem, places: dict[str, str]) -> None:
    if problem.id in places:
        raise DataError(
            f"{place} has the id {problem.id!r}, which {places[problem.id]} has too.\n"
            "Rollouts are grouped by id, so two problems may not share one. Delete one of the "
            "rows, or join specs that do not overlap."
        )
    places[problem.id] = place


def problem_from(row: Row, config: str) -> MusiqueProblem:
    """A validated problem."""
    answerable = _field(row, row.data, "answerable", bool, default=True)
    paragraphs = _paragraphs(row)
    hops = _hops(row, {p.idx for p in paragraphs}, answerable)
    question = _text(row, row.data, "question")
    if answerable and not any(p.is_supporting for p in paragraphs):
        raise _fault(
            row,
            "is answerable but has no supporting paragraph",
            "Set `is_supporting` of the paragraphs that answer a hop, or `answerable` to false",
        )
    aliases = _aliases(row)
    return MusiqueProblem(
        id=_text(row, row.data, "id") + ("" if answerable else TWIN_SUFFIX),
        question=question,
        answer=_text(row, row.data, "answer") if answerable else UNANSWERABLE,
        aliases=aliases if answerable else (),
        hops=len(hops),
        paragraphs=paragraphs,
        decomposition=hops,
        answerable=answerable,
        config=config,
    )


def _fill_in(question: str, known: Sequence[str]) -> str:
    def answer(found: re.Match[str]) -> str:
        number = int(found[1])
        return known[number - 1] if 1 <= number <= len(known) else found[0]

    return _REFERENCE.sub(answer, question)


def _aliases(row: Row) -> tuple[str, ...]:
    aliases: list[Any] = _field(row, row.data, "answer_aliases", list, default=[])
    strange = [alias for alias in aliases if not isinstance(alias, str)]
    if strange:
        raise _fault(
            row,
            f"has {strange[0]!r:.60} in `answer_aliases`, which is no text",
            "Every alias is paid as a right answer: put it in quotation marks, or take it out",
        )
    return tuple(aliases)


def _paragraphs(row: Row) -> tuple[Paragraph, ...]:
    paragraphs = tuple(
        Paragraph(
            idx=_field(row, entry, "idx", int),
            title=_field(row, entry, "title", str),
            text=_field(row, entry, "paragraph_text", str),
            is_supporting=_field(row, entry, "is_supporting", bool),
        )
        for entry in _entries(row, "paragraphs")
    )
    ids = [paragraph.idx for paragraph in paragraphs]
    repeated = sorted({idx for idx in ids if ids.count(idx) > 1})
    if repeated:
        raise _fault(
            row,
            f"has more than one paragraph with idx {repeated[0]}",
            "Number the paragraphs of a problem 0, 1, 2, ...",
        )
    return paragraphs


def _hops(row: Row, ids: set[int], answerable: bool) -> tuple[Hop, ...]:
    hops = []
    for entry in _entries(row, "question_decomposition"):
        support = entry.get("paragraph_support_idx")
        known = isinstance(support, int) and support in ids
        if not known and (answerable or support is not None):
            raise _fault(
                row,
                f"has paragraph_support_idx {support!r}, but its paragraphs are numbered "
                f"{min(ids)} to {max(ids)}",
                "Give the idx of the paragraph that answers the hop",
            )
        question, answer = _text(row, entry, "question"), _text(row, entry, "answer")
        hops.append(Hop(question=question, answer=answer, support=support))
    return tuple(hops)


def _entries(row: Row, name: str) -> list[dict[str, Any]]:
    entries: list[Any] = _field(row, row.data, name, list)
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise _fault(row, f"has no list of objects in `{name}`", "Give it in the official schema")
    return entries


def _text(row: Row, data: Mapping[str, Any], name: str) -> str:
    text: str = _field(row, data, name, str)
    if not text.strip():
        raise _fault(row, f"has an empty `{name}`", "Fill it in or delete the line")
    return text


def _field(row: Row, data: Mapping[str, Any], name: str, kind: type, *, default: Any = None) -> Any:
    value = data.get(name)
    value = default if value is None else value
    if value is None:
        seen = ", ".join(sorted(map(str, data))) or "nothing"
        raise _fault(row, f"lacks `{name}` (it has {seen:.200})", "Use the official MuSiQue schema")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _fault(
            row,
            f"has `{name}` of type {type(value).__name__} where {kind.__name__} is needed",
            "Write true or false, without quotation marks"
            if kind is bool
            else "Use the official MuSiQue schema",
        )
    return value


def _fault(row: Row, seen: str, advice: str) -> DataError:
    return DataError(f"{row.place} {seen}.\n{advice}.")
