"""The gold check: does the best play earn the maximum, and every spoiled one less?

A reward that a wrong play can earn in full teaches that play, and one that the right play cannot
earn has no ceiling to climb to. Both look like a model that does not learn, so they are ruled out
first, problem by problem, without any model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from flatline.errors import DataError
from flatline.tasks import scoring
from flatline.tasks.base import Problem, Score, Script, Task, ToolCall
from flatline.tasks.musique import DEFAULT_TOP_N, RETRIEVE, Musique
from flatline.tasks.musique_rows import MusiqueProblem

GOLD = "gold"
"""Name of the script that must earn the maximum."""

_TOLERANCE = 1e-9
"""Rewards are sums of floats; a difference below this is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A problem whose reward does not mean what it should."""

    problem: str
    """Id of the problem."""
    script: str
    """`gold`, or what the play had wrong with it."""
    reward: float
    """What the play earned."""
    gold_reward: float
    """What the gold play earned."""
    why: str
    """Why that is wrong, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A mean over problems."""

    value: float
    """The mean."""
    n: int
    """How many problems it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Retrieval recall when every hop's sub-question is asked, with the earlier answers known."""

    retriever: str
    """Which retriever was asked."""
    top_n: int
    """How many documents each sub-question brought."""
    recall: Share
    """Over all problems that have supporting paragraphs."""
    per_hop: Mapping[int, Share]
    """The same by hop count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What the gold check found."""

    problems: int
    """How many problems were played; never 0."""
    violations: list[Violation] = field(default_factory=list)
    """Empty where the reward is sound."""
    ceiling: Ceiling | None = None
    """For MuSiQue with a retriever that can miss."""

    @property
    def passed(self) -> bool:
        return not self.violations

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(task: Task, problems: Iterable[Problem]) -> CheckReport:
    """Plays gold and every corruption of every problem. Wrap `problems` to show progress."""
    stage = _Stage(task)
    violations: list[Violation] = []
    recalls: list[tuple[int, float]] = []
    count = 0
    for problem in problems:
        count += 1
        violations += _violations(stage, problem)
        recalls += _recall_of_sub_questions(task, problem)
    if not count:
        raise DataError(
            "There are no problems to check.\n"
            "An empty check proves nothing: give a dataset spec or slice that has rows."
        )
    return CheckReport(problems=count, violations=violations, ceiling=_ceiling(task, recalls))


def play(task: Task, problem: Problem, script: Script) -> Score:
    """The score of a scripted play."""
    episode = task.episode(problem)
    final: str | None = None
    for turn in script:
        if isinstance(turn, str):
            final = turn
        else:
            episode.observe(turn)
    return episode.score(final)


class _Stage:
    """Where a script is played. Only MuSiQue has more than one stage.

    Its gold is played with the golden retriever, so that the check is about the reward and not
    about the search. Dumping all documents needs one that has wrong documents to give.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._other: dict[str, Task] = {}
        if isinstance(task, Musique):
            self._task = task.with_retriever("golden")
            self._other["dump_all_documents"] = task.with_retriever("bm25")

    def gold(self, problem: Problem) -> Score:
        return play(self._task, problem, self._task.gold(problem))

    def corruptions(self, problem: Problem) -> Iterable[tuple[str, Score]]:
        for name, script in self._task.corruptions(problem).items():
            yield name, play(self._other.get(name, self._task), problem, script)


def _violations(stage: _Stage, problem: Problem) -> list[Violation]:
    gold = stage.gold(problem)
    lacking = [f"{name} is {value:.3g}" for name, value in gold.parts.items() if value != 1]
    found = []
    if lacking:
        why = f"gold does not earn the maximum: {', '.join(lacking)}"
        found.append(_violation(problem, GOLD, gold, gold, why))
    for name, score in stage.corruptions(problem):
        if score.reward > gold.reward - _TOLERANCE:
            why = f"{name.replace('_', ' ')} earns no less than gold"
            found.append(_violation(problem, name, score, gold, why))
    return found


def _violation(problem: Problem, script: str, score: Score, gold: Score, why: str) -> Violation:
    return Violation(
        problem=problem.id,
        script=script,
        reward=score.reward,
        gold_reward=gold.reward,
        why=why,
    )


def _recall_of_sub_questions(task: Task, problem: Problem) -> list[tuple[int, float]]:
    """Hop count and recall, where both mean something; else nothing."""
    if not isinstance(task, Musique) or not isinstance(problem, MusiqueProblem):
        return []
    if task.retriever == "golden" or not problem.supporting:
        return []
    episode = task.episode(problem)
    for question in problem.sub_questions():
        episode.observe(ToolCall(name=RETRIEVE.name, arguments={"query": question}))
    return [(problem.hops, scoring.recall(episode.retrieved, problem.supporting))]


def _ceiling(task: Task, recalls: list[tuple[int, float]]) -> Ceiling | None:
    if not recalls or not isinstance(task, Musique):
        return None
    hops = sorted({hops for hops, _ in recalls})
    return Ceiling(
        retriever=task.retriever,
        top_n=DEFAULT_TOP_N,
        recall=_share([recall for _, recall in recalls]),
        per_hop={hop: _share([recall for hops, recall in recalls if hops == hop]) for hop in hops},
    )


def _share(values: list[float]) -> Share:
    return Share(value=fmean(values), n=len(values))
