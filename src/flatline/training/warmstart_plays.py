"""What a warm start imitates: plays of training problems, most of them right, some careless.

A play knows the solution and uses the task's real tools, so the model learns to read what really
comes back. On MuSiQue it searches hop by hop with the gold sub-questions; where a search does not
bring the hop's document, it looks again for more documents, as a policy could. A problem whose
documents the retriever does not find is left out: its answer would have to be invented.

A careless play makes the mistakes of a mediocre policy. A model that only ever imitates perfection
has nothing to choose from, and GRPO learns from differences inside a group.
"""

import random
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from flatline.errors import DataError
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Limits
from flatline.rollout.record import Author, Rollout
from flatline.tasks.base import Problem, Script, Task, ToolCall
from flatline.tasks.musique import DEFAULT_TOP_N, RETRIEVE
from flatline.tasks.musique_rows import MusiqueProblem
from flatline.training.lab.transcripts import CARELESS, finish_world
from flatline.training.scripted import ScriptedPlay

RATES: Mapping[str, Mapping[str, float]] = {
    "musique": {
        "one_hop_short": 0.5,
        "bridge_answer": 0.3,
        "wrong_citation": 1.0,
        "vague_query": 0.5,
        "wordy_answer": 0.3,
        "no_answer_tag": 0.2,
        "no_think": 0.3,
    },
    "gsm8k": {"intermediate_answer": 0.5, "wrong_answer": 0.3, "missing_mark": 0.4},
    "toolmath": {"bridge_answer": 1.0, "skipped_step": 0.5, "missing_tag": 0.6},
}
"""How often each mistake is made at carelessness 1; below, all are as much rarer."""

LAB_LEVEL = 0.4
"""Carelessness at which the lab's problems are played as the lab policy learnt to play them."""

_WORLD = re.compile(r"[0-9]hop[0-9]*__world_[a-z]+_[0-9]+")
"""Ids of the lab's problems, which have a script of their own in the words of the lab policy."""
_WIDTHS = (DEFAULT_TOP_N, 5, 10)
"""Documents asked for, first and when a search did not bring what was looked for."""


class NotFound(Exception):
    """The tools do not bring what the answer needs."""


class Imitated(NamedTuple):
    """A play to imitate, or why there is none."""

    play: Rollout | None
    reason: str = ""


def imitate(
    chat: ChatFormat, task: Task, problem: Problem, *, rng: random.Random, careless: float
) -> Rollout:
    """One play; `careless` from 0 (gold) to 1 scales how often each mistake is made."""
    rates = RATES.get(task.name, {})
    mistakes = {name for name, rate in rates.items() if rng.random() < rate * careless}
    play = ScriptedPlay(chat, task, problem)
    if isinstance(problem, MusiqueProblem) and _WORLD.fullmatch(problem.id):
        errs = {name: min(1.0, rate * careless / LAB_LEVEL) for name, rate in CARELESS.items()}
        return finish_world(play, problem, rng, errs)
    if isinstance(problem, MusiqueProblem):
        return _search_and_answer(play, problem, mistakes, rng)
    return _follow(play, _chosen_script(task, problem, mistakes, rng))


def fitted(
    chat: ChatFormat,
    task: Task,
    problem: Problem,
    *,
    rng: random.Random,
    careless: float,
    limits: Limits,
) -> Imitated:
    """A play that a rollout under these limits could have been; else what stands in its way."""
    try:
        play = imitate(chat, task, problem, rng=rng, careless=careless)
    except NotFound:
        return Imitated(None, "the retriever does not find its documents")
    if len(play.turns) > limits.max_turns:
        return Imitated(None, f"more than {limits.max_turns} turns (--max-turns)")
    if _longest_turn(play) > limits.max_new_tokens:
        most = f"more than {limits.max_new_tokens} tokens"
        return Imitated(None, f"a turn of {most} (--max-new-tokens)")
    length = len(play.prompt_ids) + len(play.completion_ids)
    if limits.max_context is not None and length > limits.max_context:
        return Imitated(None, f"more than the model's {limits.max_context} tokens of context")
    return Imitated(play)


def _longest_turn(play: Rollout) -> int:
    """Tokens of the longest turn of the model, its end included."""
    longest = length = 0
    for author in play.authors:
        length = length + 1 if author is Author.MODEL else 0
        longest = max(longest, length)
    return longest


# -- any task: the script itself, or one of its corruptions -----------------------------------


def _chosen_script(
    task: Task, problem: Problem, mistakes: Collection[str], rng: random.Random
) -> Script:
    wrong = {name: s for name, s in task.corruptions(problem).items() if name in mistakes}
    script = wrong[rng.choice(sorted(wrong))] if wrong else task.gold(problem)
    if not script or not isinstance(script[-1], str):
        raise DataError(
            f"There is no gold episode of problem {problem.id!r}: {task.name} has no final message "
            "for it.\nA warm start imitates gold episodes.\nLeave the problem out."
        )
    return script


def _follow(play: ScriptedPlay, script: Script) -> Rollout:
    *calls, final = script
    for call in calls:
        assert isinstance(call, ToolCall)  # the mistakes in RATES write readable calls
        play.call(call)
    assert isinstance(final, str)
    return play.finish(final)


# -- MuSiQue ----------------------------------------------------------------------------------


def _search_and_answer(
    play: ScriptedPlay, problem: MusiqueProblem, mistakes: Collection[str], rng: random.Random
) -> Rollout:
    hops = list(zip(problem.sub_questions(), problem.decomposition, strict=True))
    whole = len(hops)
    if "one_hop_short" in mistakes:
        hops = hops[: max(1, whole - 1)]
    vague = rng.randrange(len(hops)) if "vague_query" in mistakes else None
    for i, (query, hop) in enumerate(hops):
        if i == vague:
            _retrieve(play, problem.question, DEFAULT_TOP_N)
        _find(play, query, hop.support)
    answer = problem.answer if len(hops) == whole else hops[-1][1].answer
    if "bridge_answer" in mistakes:
        answer = hops[max(0, len(hops) - 2)][1].answer
    cited = [hop.support for _, hop in hops if hop.support is not None]
    if "wrong_citation" in mistakes:
        cited = _miscited(cited, play, rng)
    why = " ".join(f"{query}: {hop.answer}." for query, hop in hops)
    if not problem.answerable:
        why = "A document that the question needs is not there."
    return play.finish(_final(why, sorted(set(cited)), answer, mistakes))


def _find(play: ScriptedPlay, query: str, wanted: int | None) -> None:
    """Search for a document, wider where it does not come; one that was taken away, once."""
    for top_n in _WIDTHS:
        found = _retrieve(play, query, top_n)
        if wanted is None or wanted in found:
            return
    raise NotFound


def _retrieve(play: ScriptedPlay, query: str, top_n: int) -> tuple[int, ...]:
    width = {} if top_n == DEFAULT_TOP_N else {"top_n": top_n}
    return play.call(ToolCall(name=RETRIEVE.name, arguments={"query": query, **width})).documents


def _miscited(cited: list[int], play: ScriptedPlay, rng: random.Random) -> list[int]:
    """One document left out, or one that was seen and does not matter put in its place."""
    dropped = rng.choice(cited) if cited else None
    kept = [id for id in cited if id != dropped]
    others = sorted({id for turn in play.turns for id in turn.documents} - set(cited))
    return [*kept, rng.choice(others)] if others and (rng.random() < 0.5 or not kept) else kept


def _final(why: str, cited: Collection[int], answer: str, mistakes: Collection[str]) -> str:
    # Data may hold anything, also our tags.
    thought = f"<think>{why.replace('<', '(').replace('>', ')')}</think>\n"
    if "no_think" in mistakes:
        thought = ""
    if "wordy_answer" in mistakes:
        answer = f"The answer is {answer}."
    tagged = answer if "no_answer_tag" in mistakes else f"<answer>{answer}</answer>"
    return f"{thought}<cite>{', '.join(map(str, cited))}</cite>\n{tagged}"
