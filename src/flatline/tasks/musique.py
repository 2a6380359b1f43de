"""MuSiQue: questions that need two to four documents, one after the other.

A row of the official JSONL (of its twenty paragraphs two are shown):

    {"id": "2hop__678516_179720",
     "question": "Who was married to the creator of Ruby Loftus Screwing a Breech Ring?",
     "answer": "Harold Knight", "answer_aliases": [], "answerable": true,
     "paragraphs": [
       {"idx": 9, "title": "Staithes group", "is_supporting": true,
        "paragraph_text": "The group contained renowned artists such as Laura Knight ..."},
       {"idx": 12, "title": "Arthur Loftus Tottenham", "is_supporting": false,
        "paragraph_text": "Arthur Loftus Tottenham (5 April 1838 ..."}],
     "question_decomposition": [
       {"id": 678516, "question": "Ruby Loftus Screwing a Breech Ring >> creator",
        "answer": "Laura Knight", "paragraph_support_idx": 14},
       {"id": 179720, "question": "#1 >> spouse",
        "answer": "Harold Knight", "paragraph_support_idx": 9}]}

The config `answerable` drops the rows whose `answerable` is false. `full` keeps them: enough of
their supporting paragraphs is missing that the right answer is to say so. The official files give
such a twin the id of its answerable sibling, so ours gets a suffix.

Trivedi et al., TACL 2022. https://github.com/StonyBrookNLP/musique
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Literal, get_args

from flatline.errors import ConfigError, DataError
from flatline.tasks import scoring
from flatline.tasks.base import (
    BadToolCall,
    Episode,
    Message,
    Observation,
    Problem,
    Score,
    Script,
    Task,
    Tool,
    ToolCall,
    Weights,
)
from flatline.tasks.datasets import parse_specs
from flatline.tasks.musique_rows import (
    UNANSWERABLE,
    MusiqueProblem,
    config_of,
    problems_of,
    refuse_duplicate,
)
from flatline.tasks.retrieval import Paragraph, Retriever, retriever_factory
from flatline.tasks.weights import merged_weights

NOTHING_FOUND = "No documents found."

DEFAULT_TOP_N, MOST_DOCUMENTS = 2, 20

WEIGHTS: Mapping[str, float] = {
    "exact_match": 0.9,
    "f1": 1.0,
    "retrieval_recall": 1.0,
    "retrieval_precision": 0.4,
    "citation": 0.6,
    "format": 0.1,
}

SYSTEM_PROMPT = """\
Answer the question with the help of the tool retrieve_documents. The question needs several \
facts, each in another document. Look for one fact at a time: write a short query for it, read \
what comes back, and use what you learned in the next query.

When you have every fact, finish with one message in exactly this form and nothing else:
<think>how the facts lead to the answer</think>
<cite>ids of the documents you used, comma separated</cite>
<answer>the answer alone, as short as possible</answer>"""

UNANSWERABLE_PROMPT = f"""

Some questions cannot be answered from the documents. Then write <answer>{UNANSWERABLE}</answer>."""

RETRIEVE = Tool(
    name="retrieve_documents",
    description="Searches the documents and returns those that fit the query best.",
    parameters={
        "query": {"type": "string", "description": "What to look for."},
        "top_n": {
            "type": "integer",
            "description": f"How many documents to return, 1 to {MOST_DOCUMENTS}.",
            "default": DEFAULT_TOP_N,
        },
    },
)

Order = Literal["shuffled", "hops", "file"]
"""`hops` is sorted by hop count: a curriculum by accident, since a run may never see the rest."""

_INDEXES_KEPT = 256
"""Problems whose index stays in memory; rollouts of one problem are played close together."""


class MusiqueEpisode(Episode):
    """One play: searches, then a final message with think, cite and answer."""

    tools: ClassVar[tuple[Tool, ...]] = (RETRIEVE,)
    problem: MusiqueProblem

    def __init__(
        self, problem: MusiqueProblem, *, retriever: Retriever, weights: Weights, factor: float
    ) -> None:
        super().__init__(problem)
        self.retrieved: dict[int, None] = {}
        """Ids of the documents seen so far, each once, in the order they were found."""
        self._retriever = retriever
        self._weights = weights
        self._factor = factor
        self._texts = {p.idx: _document(p) for p in problem.paragraphs}

    def _run(self, call: ToolCall) -> Observation:
        query, top_n = call.arguments["query"], call.arguments.get("top_n", DEFAULT_TOP_N)
        if not query.strip():
            return self._refuse("the query is empty. Say what to look for.")
        if not 1 <= top_n <= MOST_DOCUMENTS:
            return self._refuse(f"top_n must be between 1 and {MOST_DOCUMENTS}, got {top_n!s:.20}.")
        found = self._retriever.search(query, top_n)
        self.retrieved |= dict.fromkeys(found)
        pieces = tuple(self._texts[idx] for idx in found)
        text = "\n".join(pieces) or NOTHING_FOUND
        return Observation(text=text, documents=tuple(found), pieces=pieces)

    def _refuse(self, reason: str) -> Observation:
        self.events["tool_errors"] += 1
        return Observation(text=f"Error: {reason}")

    def score(self, final: str | None) -> Score:
        message = final or ""
        answer, cited, notes = self._read(message)
        if final is None:
            notes = ["no final message: the model never finished"]
        # Assigned, not added: scoring twice must not count twice.
        self.events["malformed_answers"] = int(final is not None and bool(notes))
        fault = scoring.format_fault(message)
        if fault and not notes:
            notes = [fault]
        well_formed = fault is None and not self.events["malformed_calls"]
        parts = {
            **self._answer_parts(answer),
            **self._document_parts(cited),
            "format": float(well_formed),
        }
        reward = self._factor * self._weights.combine(parts)
        return Score(reward=reward, parts=parts, notes=tuple(notes))

    def _read(self, message: str) -> tuple[str | None, tuple[int, ...], list[str]]:
        """Answer and citations of a final message, and what could not be read."""
        notes = []
        spoken = scoring.after_thought(message)
        answer = scoring.tag_content(spoken, "answer")
        if answer is None:
            notes.append(f"no <answer> tag: the message ends with {message[-60:]!r}")
        elif not answer:
            notes.append("the <answer> tag is empty")
        citation = scoring.tag_content(spoken, "cite")
        if citation is None:
            notes.append("no <cite> tag")
        citations = scoring.parse_citations(citation or "")
        if citations.unreadable:
            shown = ", ".join(f"{word:.20}" for word in citations.unreadable[:3])
            notes.append(f"<cite> holds what is no document id: {shown}")
        return answer, citations.ids, notes

    def _answer_parts(self, answer: str | None) -> dict[str, float]:
        if answer is None:
            return {"exact_match": 0.0, "f1": 0.0}
        accepted = self.problem.accepted
        return {
            "exact_match": scoring.exact_match(answer, accepted),
            "f1": scoring.token_f1(answer, accepted),
        }

    def _document_parts(self, cited: Sequence[int]) -> dict[str, float]:
        """Nothing where no paragraph supports: there is nothing to find or to cite."""
        gold = self.problem.supporting
        if not gold:
            return {}
        return {
            "retrieval_recall": scoring.recall(self.retrieved, gold),
            "retrieval_precision": scoring.precision(self.retrieved, gold),
            "citation": scoring.citation_f1(cited, gold),
        }


class Musique(Task):
    """Multi-hop questions answered with searches over the problem's own paragraphs."""

    name: ClassVar[str] = "musique"
    tools: ClassVar[tuple[Tool, ...]] = (RETRIEVE,)

    def __init__(
        self,
        *,
        retriever: str = "bm25",
        noise: float = 1.0,
        weights: Mapping[str, float] | None = None,
        hop_factor: bool = False,
        order: Order = "shuffled",
        seed: int = 0,
    ) -> None:
        """`noise` is the share of non-supporting paragraphs kept. A part that `weights` does not
        name keeps its default. `hop_factor` multiplies the reward by half the hop count, so that
        it may exceed 1."""
        if not 0 <= noise <= 1:
            raise ConfigError(f"noise is {noise}.\nIt is a share: give a number from 0 to 1.")
        if order not in get_args(Order):
            known = ", ".join(get_args(Order))
            raise ConfigError(f"There is no order {order!r}.\nChoose one of {known}.")
        self.retriever = retriever
        self.noise = noise
        self._weights = merged_weights(WEIGHTS, weights)
        self.hop_factor = hop_factor
        self.order = order
        self.seed = seed
        self._index = lru_cache(_INDEXES_KEPT)(retriever_factory(retriever))
        self._golden = lru_cache(_INDEXES_KEPT)(retriever_factory("golden"))

    @property
    def weights(self) -> Mapping[str, float]:
        """What each part weighs."""
        return self._weights.parts

    def with_retriever(self, name: str) -> "Musique":
        """The same task with another retriever."""
        return Musique(
            retriever=name,
            noise=self.noise,
            weights=self.weights,
            hop_factor=self.hop_factor,
            order=self.order,
            seed=self.seed,
        )

    def load(self, specs: str, *, split: str) -> list[Problem]:
        problems: list[MusiqueProblem] = []
        places: dict[str, str] = {}
        for spec in parse_specs(specs):
            config = config_of(spec)
            for place, problem in problems_of(spec, split, config):
                refuse_duplicate(place, problem, places)
                if problem.answerable or config == "full":
                    problems.append(self._with_noise(problem))
        if not problems:
            raise DataError(
                f"`{specs}` has unanswerable problems only.\n"
                "Keep them with the config `full`: `path,full,split`."
            )
        return list(self._ordered(problems))

    def messages(self, problem: Problem) -> list[Message]:
        full = _musique(problem).config == "full"
        system = SYSTEM_PROMPT + (UNANSWERABLE_PROMPT if full else "")
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": problem.question},
        ]

    def episode(self, problem: Problem) -> MusiqueEpisode:
        problem = _musique(problem)
        return MusiqueEpisode(
            problem,
            retriever=self._index(problem.paragraphs),
            weights=self._weights,
            factor=problem.hops / 2 if self.hop_factor else 1.0,
        )

    def gold(self, problem: Problem) -> Script:
        problem = _musique(problem)
        return [*self._gold_calls(problem), _gold_final(problem)]

    def corruptions(self, problem: Problem) -> Mapping[str, Script]:
        """`dump_all_documents` means nothing under the golden retriever, which has no wrong
        document to give; the gold check plays it with another one."""
        problem = _musique(problem)
        calls, final = self._gold_calls(problem), _gold_final(problem)
        cited = sorted(problem.supporting)
        scripts: dict[str, Script] = {
            "wrong_answer": [*calls, _final(cited, _wrong_answer(problem))],
            "missing_tag": [*calls, final.replace("<answer>", "").replace("</answer>", "")],
            "empty": [],
            "malformed_call": [_MALFORMED_CALL, *calls, final],
        }
        bridge = _bridge_entity(problem)
        if bridge is not None:
            scripts["bridge_entity"] = [*calls, _final(cited, bridge)]
        everything = [p.idx for p in problem.paragraphs]
        if cited and len(everything) > len(cited):
            scripts["cite_everything"] = [*calls, _final(everything, problem.answer)]
            scripts["dump_all_documents"] = [_dump(problem), final]
        return scripts

    def _gold_calls(self, problem: MusiqueProblem) -> list[ToolCall]:
        """One search for each hop, wide enough that the golden retriever gives its paragraph.

        The last search is wide enough for whatever paragraph is still missing.
        """
        index = self._golden(problem.paragraphs)
        missing = set(problem.supporting)
        calls = []
        for number, (hop, query) in enumerate(
            zip(problem.decomposition, problem.sub_questions(), strict=True), 1
        ):
            ranked = index.search(query, MOST_DOCUMENTS)
            needed = missing if number == problem.hops else missing & {hop.support}
            depth = max((ranked.index(idx) + 1 for idx in needed if idx in ranked), default=0)
            missing -= set(ranked[: max(depth, DEFAULT_TOP_N)])
            width = {"top_n": depth} if depth > DEFAULT_TOP_N else {}
            calls.append(ToolCall(name=RETRIEVE.name, arguments={"query": query, **width}))
        return calls

    def _with_noise(self, problem: MusiqueProblem) -> MusiqueProblem:
        """The problem with its share of distractors; the same ones whatever else is loaded."""
        if self.noise == 1:
            return problem
        distractors = [p.idx for p in problem.paragraphs if not p.is_supporting]
        generator = random.Random(f"{self.seed}:{problem.id}")
        kept = set(generator.sample(distractors, round(self.noise * len(distractors))))
        kept |= problem.supporting
        paragraphs = tuple(p for p in problem.paragraphs if p.idx in kept)
        return replace(problem, paragraphs=paragraphs)

    def _ordered(self, problems: list[MusiqueProblem]) -> list[MusiqueProblem]:
        if self.order == "hops":
            return sorted(problems, key=lambda problem: problem.hops)
        if self.order == "shuffled":
            random.Random(self.seed).shuffle(problems)
        return problems


# -- scripts ----------------------------------------------------------------------------------

_MALFORMED_CALL = BadToolCall(
    text=f'{{"name": "{RETRIEVE.name}", "arguments": {{"query": ',
    reason="the tool call is not valid JSON: it ends too early.",
)


def _final(cited: Sequence[int], answer: str, *, why: str = "The documents say so.") -> str:
    ids = ", ".join(map(str, cited))
    return f"<think>{why}</think>\n<cite>{ids}</cite>\n<answer>{answer}</answer>"


def _gold_final(problem: MusiqueProblem) -> str:
    steps = zip(problem.sub_questions(), problem.decomposition, strict=True)
    why = " ".join(f"{question}: {hop.answer}." for question, hop in steps)
    if not problem.answerable:
        why = "A document that the question needs is not there."
    return _final(sorted(problem.supporting), problem.answer, why=_untagged(why))


def _untagged(text: str) -> str:
    """Data may hold anything, also our tags; a gold message may not."""
    return text.replace("<", "(").replace(">", ")")


def _wrong_answer(problem: MusiqueProblem) -> str:
    """A wrong answer that looks like one: the title of a distractor, or what is not known."""
    titles = [p.title for p in problem.paragraphs if not p.is_supporting]
    known = [] if problem.answerable else [problem.decomposition[-1].answer]
    return _first_wrong(problem, [*known, *titles, "nobody knows"]) or "no answer at all"


def _bridge_entity(problem: MusiqueProblem) -> str | None:
    """The answer of the latest earlier hop that is not also the final answer."""
    return _first_wrong(problem, [hop.answer for hop in reversed(problem.decomposition[:-1])])


def _first_wrong(problem: MusiqueProblem, candidates: Sequence[str]) -> str | None:
    accepted = problem.accepted
    wrong = (text for text in candidates if not scoring.exact_match(text, accepted))
    return next(wrong, None)


def _dump(problem: MusiqueProblem) -> ToolCall:
    query = " ".join(p.title for p in problem.paragraphs)
    return ToolCall(name=RETRIEVE.name, arguments={"query": query, "top_n": MOST_DOCUMENTS})


def _document(paragraph: Paragraph) -> str:
    return f"Document ID: {paragraph.idx}\n# {paragraph.title}\n{paragraph.text}"


def _musique(problem: Problem) -> MusiqueProblem:
    if not isinstance(problem, MusiqueProblem):
        raise TypeError(f"a MuSiQue problem is needed, not a {type(problem).__name__}")
    return problem
