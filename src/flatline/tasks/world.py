"""World: MuSiQue-shaped problems about an invented world, the embedded default data.

Rows have the official MuSiQue schema. A small one, with two of its twelve paragraphs:

    {"id": "2hop__world_validation_7",
     "question": "Where was the director of Velbara born?",
     "answer": "Sornmex", "answer_aliases": [], "answerable": true,
     "question_decomposition": [
       {"id": 0, "question": "Who directed Velbara?", "answer": "Garngira",
        "paragraph_support_idx": 4},
       {"id": 1, "question": "Where was #1 born?", "answer": "Sornmex",
        "paragraph_support_idx": 9}],
     "paragraphs": [
       {"idx": 4, "title": "Velbara", "is_supporting": true,
        "paragraph_text": "Velbara is a film. It stars Dulkox. Its director is Garngira."}, ...]}

All six decomposition shapes of MuSiQue occur. Distractors are of the same types and hold the same
relations as the supporting paragraphs, so that matching a relation word is not enough. An
unanswerable twin is the same problem with the fact of one hop removed.

A row depends only on (seed, split, index), so a slice costs what it holds.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flatline.errors import DataError
from flatline.tasks.names import fresh_names

SIZES: Mapping[str, int] = {"train": 8192, "validation": 1024, "test": 1024}
PARAGRAPHS = (10, 20)
"""Fewest and most paragraphs of a problem."""


class Relation(NamedTuple):
    """A kind of fact about an entity, or about a pair when `other` is set."""

    name: str
    of: str
    """Type of the entity whose paragraph states the fact."""
    to: str
    """Type of the value."""
    facts: tuple[str, str]
    """Two ways to state it; the first is the plain one."""
    questions: tuple[str, str]
    """Two ways to ask for it."""
    other: str = ""
    """Type of the second entity of a pair."""

    def phrase(self, *subjects: str) -> str:
        """The value as a noun phrase inside a longer question."""
        start = f"the {self.name} of {subjects[0]}"
        return f"{start} for {subjects[1]}" if self.other else start

    def query(self, *subjects: str) -> str:
        """A short search that finds the fact."""
        return " ".join([subjects[0], self.name, *subjects[1:]])


RELATIONS = (
    Relation(
        "director",
        "film",
        "person",
        ("Its director is {y}.", "It was directed by {y}."),
        ("Who directed {x}?", "Who is the director of {x}?"),
    ),
    Relation(
        "star",
        "film",
        "person",
        ("Its star is {y}.", "It stars {y}."),
        ("Who stars in {x}?", "Who is the star of {x}?"),
    ),
    Relation(
        "studio",
        "film",
        "company",
        ("Its studio is {y}.", "It was produced by {y}."),
        ("Which studio produced {x}?", "What is the studio of {x}?"),
    ),
    Relation(
        "author",
        "book",
        "person",
        ("Its author is {y}.", "It was written by {y}."),
        ("Who wrote {x}?", "Who is the author of {x}?"),
    ),
    Relation(
        "publisher",
        "book",
        "company",
        ("Its publisher is {y}.", "It was published by {y}."),
        ("Which company published {x}?", "What is the publisher of {x}?"),
    ),
    Relation(
        "founder",
        "company",
        "person",
        ("Its founder is {y}.", "It was founded by {y}."),
        ("Who founded {x}?", "Who is the founder of {x}?"),
    ),
    Relation(
        "headquarters",
        "company",
        "city",
        ("Its headquarters is {y}.", "It is based in {y}."),
        ("Where is {x} based?", "Where is the headquarters of {x}?"),
    ),
    Relation(
        "spouse",
        "person",
        "person",
        ("Their spouse is {y}.", "They are married to {y}."),
        ("Who is {x} married to?", "Who is the spouse of {x}?"),
    ),
    Relation(
        "birthplace",
        "person",
        "city",
        ("Their birthplace is {y}.", "They were born in {y}."),
        ("Where was {x} born?", "What is the birthplace of {x}?"),
    ),
    Relation(
        "employer",
        "person",
        "company",
        ("Their employer is {y}.", "They work for {y}."),
        ("Which company does {x} work for?", "What is the employer of {x}?"),
    ),
    Relation(
        "teacher",
        "person",
        "person",
        ("Their teacher is {y}.", "They studied under {y}."),
        ("Who did {x} study under?", "Who is the teacher of {x}?"),
    ),
    Relation(
        "mayor",
        "city",
        "person",
        ("Its mayor is {y}.", "It is led by {y}."),
        ("Who leads {x}?", "Who is the mayor of {x}?"),
    ),
    Relation(
        "country",
        "city",
        "country",
        ("Its country is {y}.", "It lies in {y}."),
        ("In which country is {x}?", "What is the country of {x}?"),
    ),
    Relation(
        "river",
        "city",
        "river",
        ("Its river is {y}.", "It stands on the {y}."),
        ("On which river does {x} stand?", "What is the river of {x}?"),
    ),
    Relation(
        "capital",
        "country",
        "city",
        ("Its capital is {y}.", "It is ruled from {y}."),
        ("Which city is the capital of {x}?", "What is the capital of {x}?"),
    ),
    Relation(
        "president",
        "country",
        "person",
        ("Its president is {y}.", "It is governed by {y}."),
        ("Who governs {x}?", "Who is the president of {x}?"),
    ),
    Relation(
        "currency",
        "country",
        "coin",
        ("Its currency is {y}.", "It pays with {y}."),
        ("What do people in {x} pay with?", "What is the currency of {x}?"),
    ),
    Relation(
        "ambassador",
        "country",
        "person",
        ("Its ambassador for {z} is {y}.", "It sent {y} to {z}."),
        ("Who did {x} send to {z}?", "Who is the ambassador of {x} for {z}?"),
        other="country",
    ),
    Relation(
        "agent",
        "person",
        "person",
        ("Their agent for {z} is {y}.", "They are represented by {y} in {z}."),
        ("Who represents {x} in {z}?", "Who is the agent of {x} for {z}?"),
        other="city",
    ),
    Relation(
        "partner",
        "company",
        "company",
        ("Its partner for {z} is {y}.", "It sells through {y} in {z}."),
        ("Who does {x} sell through in {z}?", "Who is the partner of {x} for {z}?"),
        other="country",
    ),
)

SINGLE = tuple(r for r in RELATIONS if not r.other)
TYPES = tuple(dict.fromkeys(t for r in RELATIONS for t in (r.of, r.to)))
_OF = {t: tuple(r for r in SINGLE if r.of == t) for t in TYPES}
_ALIAS = {"river": "{y} River", "coin": "{y} coin"}

SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "2hop": ((), (0,)),
    "3hop1": ((), (0,), (1,)),
    "3hop2": ((), (), (0, 1)),
    "4hop1": ((), (0,), (1,), (2,)),
    "4hop2": ((), (), (0, 1), (2,)),
    "4hop3": ((), (0,), (), (1, 2)),
}
"""Per shape and hop, which earlier hops' answers it needs: MuSiQue's six decompositions."""
_SHAPE_WEIGHTS = {"2hop": 8, "3hop1": 5, "3hop2": 3, "4hop1": 2, "4hop2": 1, "4hop3": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step of a problem's solution."""

    relation: Relation
    subjects: tuple[str, ...]
    """The entity asked about, and for a paired relation the second one."""
    answer: str
    needs: tuple[int, ...]
    """Earlier hops whose answers are the subjects; none where the question names the subject."""


@dataclass(slots=True)
class _Draft:
    """A problem while it is being made."""

    rng: random.Random
    names: Iterator[str]
    hops: list[Hop] = field(default_factory=list)
    paragraphs: list[dict[str, Any]] = field(default_factory=list)


def rows(
    split: str, start: int, stop: int, *, config: str = "answerable", seed: int = 0
) -> list[dict[str, Any]]:
    """Rows `start` to `stop`. In config `full` every odd row is the twin of the one before."""
    if split not in SIZES:
        raise DataError(
            f"The lab data has no split {split!r}. It has {', '.join(SIZES)}: write "
            "`lab,answerable,validation[:100]`."
        )
    if config not in ("answerable", "full"):
        raise DataError(
            f"The lab data has no config {config!r}. It has `answerable` and `full` "
            "(with unanswerable twins)."
        )
    if config == "answerable":
        return [row(split, index, seed=seed) for index in range(start, stop)]
    return [
        row(split, index // 2, seed=seed, answerable=index % 2 == 0) for index in range(start, stop)
    ]


def row(split: str, index: int, *, seed: int = 0, answerable: bool = True) -> dict[str, Any]:
    """One problem in the official schema."""
    draft, shape = _begin(split, index, seed)
    _add_paragraphs(draft)
    made = _official_row(draft, f"{shape}__world_{split}_{index}")
    return made if answerable else _without_a_fact(draft, made)


def solution(id: str, *, seed: int = 0) -> list[Hop]:
    """The hops behind a row's id, with the relations that its text only implies."""
    _, split, index = id.rsplit("_", 2)
    return _begin(split, int(index), seed)[0].hops


def _begin(split: str, index: int, seed: int) -> tuple[_Draft, str]:
    """A draft with its solution: what `row` and `solution` must agree on."""
    rng = random.Random(f"world-{seed}-{split}-{index}")
    draft = _Draft(rng, fresh_names(rng, split))
    shape = rng.choices(list(_SHAPE_WEIGHTS), list(_SHAPE_WEIGHTS.values()))[0]
    draft.hops = _solution(draft, shape)
    return draft, shape


def _solution(draft: _Draft, shape: str) -> list[Hop]:
    """Relations and entities that fit the shape; no relation occurs twice."""
    while True:
        relations = _relations(draft.rng, SHAPES[shape])
        if relations:
            break
    hops: list[Hop] = []
    for relation, needs in zip(relations, SHAPES[shape], strict=True):
        subjects = tuple(hops[i].answer for i in needs) or (next(draft.names),)
        hops.append(
            Hop(relation=relation, subjects=subjects, answer=next(draft.names), needs=needs)
        )
    return hops


def _relations(
    rng: random.Random, needs_of_hops: tuple[tuple[int, ...], ...]
) -> list[Relation] | None:
    """One attempt at a chain of distinct relations whose types fit."""
    chosen: list[Relation] = []
    for needs in needs_of_hops:
        types = tuple(chosen[i].to for i in needs)
        fits = [r for r in RELATIONS if r not in chosen and _fits(r, types)]
        if not fits:
            return None
        chosen.append(rng.choice(fits))
    return chosen


def _fits(relation: Relation, types: tuple[str, ...]) -> bool:
    if len(types) == 2:
        return (relation.of, relation.other) == types
    return not relation.other and (not types or relation.of == types[0])


def _add_paragraphs(draft: _Draft) -> None:
    """Supporting paragraphs first, then distractors that look like them; shuffled later."""
    total = draft.rng.randint(*PARAGRAPHS)
    for hop in draft.hops:
        draft.paragraphs.append(_paragraph(draft, hop.subjects[0], hop.relation, hop))
    last = draft.hops[-1]
    if _OF[last.relation.to]:
        draft.paragraphs.append(_paragraph(draft, last.answer, None))
    while len(draft.paragraphs) < total:
        look_alike = draft.rng.choice(draft.hops).relation
        draft.paragraphs.append(_paragraph(draft, next(draft.names), look_alike))


def _paragraph(
    draft: _Draft, title: str, relation: Relation | None, hop: Hop | None = None
) -> dict[str, Any]:
    """Two or three facts about an entity, the given relation among them."""
    of = relation.of if relation else draft.hops[-1].relation.to
    others = [r for r in _OF[of] if r is not relation]
    chosen = draft.rng.sample(others, min(len(others), draft.rng.choice([1, 2])))
    if relation:
        chosen.insert(draft.rng.randrange(len(chosen) + 1), relation)
    facts = [_fact(draft, r, hop) if hop and r is hop.relation else _fact(draft, r) for r in chosen]
    text = " ".join([f"{title} is a {of}.", *facts])
    return {"title": title, "paragraph_text": text, "is_supporting": hop is not None}


def _fact(draft: _Draft, relation: Relation, hop: Hop | None = None) -> str:
    """A stated fact: the hop's own, or one about names that occur nowhere else."""
    value = hop.answer if hop else next(draft.names)
    second = ""
    if relation.other:
        second = hop.subjects[1] if hop else next(draft.names)
    return draft.rng.choice(relation.facts).format(y=value, z=second)


def _official_row(draft: _Draft, id: str) -> dict[str, Any]:
    """Shuffle the paragraphs and write the official fields."""
    order = draft.rng.sample(range(len(draft.paragraphs)), len(draft.paragraphs))
    last = draft.hops[-1]
    aliases = [_ALIAS[last.relation.to].format(y=last.answer)] if last.relation.to in _ALIAS else []
    return {
        "id": id,
        "paragraphs": [dict(draft.paragraphs[old], idx=new) for new, old in enumerate(order)],
        "question": _question(draft),
        "question_decomposition": [
            {
                "id": i,
                "question": _sub_question(draft, hop),
                "answer": hop.answer,
                "paragraph_support_idx": order.index(i),
            }
            for i, hop in enumerate(draft.hops)
        ],
        "answer": last.answer,
        "answer_aliases": aliases,
        "answerable": True,
    }


def _without_a_fact(draft: _Draft, row: dict[str, Any]) -> dict[str, Any]:
    """The same problem with a look-alike where one supporting paragraph was."""
    removed = draft.rng.randrange(len(draft.hops))
    step = row["question_decomposition"][removed]
    idx = step["paragraph_support_idx"]
    look_alike = _paragraph(draft, next(draft.names), draft.hops[removed].relation)
    row["paragraphs"][idx] = dict(look_alike, idx=idx)
    step["paragraph_support_idx"] = None
    row["answerable"] = False
    return row


def _question(draft: _Draft) -> str:
    """The last hop's question with earlier hops folded in as noun phrases."""
    phrases: list[str] = []
    for hop in draft.hops:
        inner = [phrases[i] for i in hop.needs] or list(hop.subjects)
        phrases.append(hop.relation.phrase(*inner))
    last = draft.hops[-1]
    return _ask(draft, last.relation, [phrases[i] for i in last.needs])


def _sub_question(draft: _Draft, hop: Hop) -> str:
    return _ask(draft, hop.relation, [f"#{i + 1}" for i in hop.needs] or list(hop.subjects))


def _ask(draft: _Draft, relation: Relation, subjects: list[str]) -> str:
    second = subjects[1] if relation.other else ""
    return draft.rng.choice(relation.questions).format(x=subjects[0], z=second)
