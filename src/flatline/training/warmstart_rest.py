"""Which training problems a warm start may use, and the others as a file for the training after it.

Problems that were imitated are answered better for having been seen; a climb on them would say
little. So a share is chosen by a hash of the problem's id, which depends neither on the order of
the file nor on what else is loaded, and every problem that was not imitated is written to
`rest.jsonl` in the task's own format.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from flatline.config import RunConfig
from flatline.files import write_atomically
from flatline.tasks import make_task
from flatline.tasks.arithmetic import show
from flatline.tasks.base import Problem
from flatline.tasks.gsm8k import WordProblem
from flatline.tasks.musique_rows import TWIN_SUFFIX, MusiqueProblem
from flatline.tasks.toolmath import StepProblem

FILE = "rest.jsonl"


def chosen(problems: Sequence[Problem], share: float, seed: int) -> list[Problem]:
    """The share of the problems whose ids come first when hashed."""
    ordered = sorted(problems, key=lambda problem: _place(problem.id, seed))
    return ordered[: max(1, round(share * len(problems)))]


def write_rest(config: RunConfig, used: Collection[str], folder: Path) -> str | None:
    """Write the problems that were not imitated; the spec to train on, None where none is left.

    They are loaded again, for `--noise` has taken paragraphs from those at hand.
    """
    problems = make_task(config.task).load(config.datasets, split="train")
    rest = [problem for problem in problems if problem.id not in used]
    if not rest:
        return None
    write_atomically(folder / FILE, _lines(rest))
    full = any(isinstance(problem, MusiqueProblem) and problem.config == "full" for problem in rest)
    return f"{folder / FILE},full" if full else str(folder / FILE)


def row_of(problem: Problem) -> dict[str, Any]:
    """The problem as a row that its task reads back."""
    if isinstance(problem, MusiqueProblem):
        return _musique_row(problem)
    if isinstance(problem, WordProblem):
        return {"question": problem.question, "answer": problem.solution}
    assert isinstance(problem, StepProblem)
    steps = [{"expression": step.expression, "value": show(step.value)} for step in problem.steps]
    return {"question": problem.question, "answer": problem.answer, "steps": steps}


def _lines(problems: Sequence[Problem]) -> Iterator[str]:
    return (json.dumps(row_of(problem), ensure_ascii=False) for problem in problems)


def _place(id: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\0{id}".encode(), digest_size=16).digest()


def _musique_row(problem: MusiqueProblem) -> dict[str, Any]:
    return {
        "id": problem.id.removesuffix(TWIN_SUFFIX),
        "question": problem.question,
        "answer": problem.answer,
        "answer_aliases": list(problem.aliases),
        "answerable": problem.answerable,
        "paragraphs": [
            {
                "idx": paragraph.idx,
                "title": paragraph.title,
                "paragraph_text": paragraph.text,
                "is_supporting": paragraph.is_supporting,
            }
            for paragraph in problem.paragraphs
        ],
        "question_decomposition": [
            {"question": hop.question, "answer": hop.answer, "paragraph_support_idx": hop.support}
            for hop in problem.decomposition
        ],
    }
