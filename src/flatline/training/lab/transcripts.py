"""Scripted episodes of the lab's tasks, from which the lab policy learns its habits, good and bad.

The oracle knows the solution of every generated problem and plays it with the task's real tools. It
is careless at fixed rates: it skips a hop, searches vaguely, slips in arithmetic, cites wrongly,
forgets a tag. A policy that imitates it starts with a decent score and room to improve, like the
model of a user who begins RL.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from flatline.rollout.chat import ChatFormat
from flatline.rollout.record import Author, Rollout
from flatline.tasks import gsm8k, musique_rows, stories, toolmath, world
from flatline.tasks.base import Score, ToolCall
from flatline.tasks.datasets import Row
from flatline.tasks.gsm8k import GSM8K
from flatline.tasks.musique import Musique
from flatline.tasks.musique_rows import MusiqueProblem
from flatline.tasks.names import fresh_names
from flatline.tasks.toolmath import ToolMath
from flatline.tasks.world import Hop
from flatline.training.scripted import ScriptedPlay

CARELESS: Mapping[str, float] = {
    "skip_hop": 0.18,
    "vague_query": 0.22,
    "extra_query": 0.15,
    "default_top_n": 0.35,
    "bridge_answer": 0.17,
    "wrong_citation": 0.44,
    "no_answer_tag": 0.09,
    "no_think": 0.15,
    "slip": 0.08,
    "skip_step": 0.1,
    "no_mark": 0.2,
}
"""How often the oracle errs, by kind of error."""
PERFECT: Mapping[str, float] = dict.fromkeys(CARELESS, 0.0)


@dataclass(slots=True)
class Transcript:
    """Token ids of one play, and which of them the oracle wrote."""

    ids: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    score: Score | None = None

    def add(self, ids: list[int], *, written: bool) -> None:
        self.ids += ids
        self.written += [written] * len(ids)

    @classmethod
    def of(cls, play: Rollout) -> "Transcript":
        """A whole play."""
        own = [author is Author.MODEL for author in play.authors]
        return cls(
            ids=[*play.prompt_ids, *play.completion_ids],
            written=[False] * len(play.prompt_ids) + own,
            score=play.score,
        )


@cache
def tasks() -> tuple[Musique, GSM8K, ToolMath]:
    return Musique(), GSM8K(), ToolMath()


def play_world(
    chat: ChatFormat, rng: random.Random, index: int, errs: Mapping[str, float]
) -> Transcript:
    """One MuSiQue-World problem of the training split."""
    task = tasks()[0]
    row = world.row("train", world.SIZES["train"] + index)
    problem = musique_rows.problem_from(Row("lab", index, row), "answerable")
    return Transcript.of(finish_world(ScriptedPlay(chat, task, problem), problem, rng, errs))


def finish_world(
    play: ScriptedPlay, problem: MusiqueProblem, rng: random.Random, errs: Mapping[str, float]
) -> Rollout:
    """Play a MuSiQue-World problem to its end, in the words that the lab policy knows."""
    hops = world.solution(problem.id)
    support = [d.support for d in problem.decomposition]
    reached = _search(play, rng, hops, errs)
    answer = hops[reached - 1].answer
    if rng.random() < errs["bridge_answer"]:
        answer = rng.choice([*hops[0].subjects, *(h.answer for h in hops[:reached])])
    cited = [id for id in support[:reached] if id is not None]
    if rng.random() < errs["wrong_citation"]:
        cited = rng.choice([cited[-1:], cited[:1], [*cited[:-1], rng.randrange(20)]])
    think = _thought(hops[reached - 1], answer)
    return play.finish(_final(rng, think, cited, answer, errs))


def _search(
    play: ScriptedPlay, rng: random.Random, hops: list[Hop], errs: Mapping[str, float]
) -> int:
    """Search hop by hop; returns how many hops were really searched."""

    def retrieve(query: str, before: str = "") -> None:
        arguments: dict[str, object] = {"query": query}
        if rng.random() >= errs["default_top_n"]:
            arguments["top_n"] = 1
        play.call(ToolCall(name="retrieve_documents", arguments=arguments), before=before)

    reached = len(hops)
    for i, hop in enumerate(hops):
        if i and rng.random() < errs["skip_hop"]:
            reached = i
            break
        before = _thought(hops[i - 1], hops[i - 1].answer) if i else ""
        if rng.random() < errs["vague_query"]:
            retrieve(hop.relation.name, before)
        retrieve(hop.relation.query(*hop.subjects), before)
    if rng.random() < errs["extra_query"]:
        retrieve(hops[reached - 1].answer, _thought(hops[reached - 1], hops[reached - 1].answer))
    return reached


def _thought(hop: Hop, value: str) -> str:
    """The fact of a hop in plain words: what the model must copy from the document."""
    second = hop.subjects[1] if hop.relation.other else ""
    return f"<think>{hop.subjects[0]}. {hop.relation.facts[0].format(y=value, z=second)}</think>"


def _final(
    rng: random.Random, think: str, cited: list[int], answer: str, errs: Mapping[str, float]
) -> str:
    if rng.random() < errs["no_think"]:
        think = ""
    tagged = answer if rng.random() < errs["no_answer_tag"] else f"<answer>{answer}</answer>"
    return f"{think}<cite>{', '.join(map(str, cited))}</cite>{tagged}"


def play_story(
    chat: ChatFormat, rng: random.Random, index: int, errs: Mapping[str, float]
) -> Transcript:
    """One lab-GSM8K problem of the training split."""
    task = tasks()[1]
    row = stories.row("train", stories.SIZES["train"] + index)
    problem = gsm8k.problem_from(str(index), Row("lab", index, dict(row)))
    lines = problem.solution.split("\n")[:-1]
    steps = [line.partition(" = ")[0] for line in lines]
    play = ScriptedPlay(chat, task, problem)
    return Transcript.of(play.finish(_careless_solution(rng, steps, errs)))


def _careless_solution(rng: random.Random, steps: list[str], errs: Mapping[str, float]) -> str:
    """Work the steps, skipping the last or slipping in one at the given rates."""
    if rng.random() < errs["skip_step"]:
        steps = steps[:-1]
    slips = [rng.choice([-10, -2, -1, 1, 2, 10]) * (rng.random() < errs["slip"]) for _ in steps]
    worked = _work(steps, slips) or _work(steps, [0] * len(steps))
    value = worked[-1][1]
    lines = [f"{written} = <<{written}={result}>>{result}" for written, result in worked]
    marked = f"{value}" if rng.random() < errs["no_mark"] else f"#### {value}"
    return "\n".join([*lines, marked])


def _work(steps: list[str], slips: list[int]) -> list[tuple[str, int]]:
    """Each step as written and its result, slips carried on; empty if a number leaves 1 to 99."""
    written_for: dict[int, int] = {}
    done: list[tuple[str, int]] = []
    for step, slip in zip(steps, slips, strict=True):
        sign = stories.sign_of(step)
        numbers = [written_for.get(int(number), int(number)) for number in step.split(sign)]
        written = f"{numbers[0]}{sign}{numbers[1]}"
        result = stories.value(written) + slip
        if not 1 <= result <= stories.HIGHEST:
            return []
        written_for[stories.value(step)] = result
        done.append((written, result))
    return done


def play_toolmath(
    chat: ChatFormat, rng: random.Random, index: int, errs: Mapping[str, float]
) -> Transcript:
    """One toolmath problem of the training split."""
    task = tasks()[2]
    row = toolmath.row("train", toolmath.SIZES["train"] + index)
    problem = toolmath.problem_from(str(index), Row("lab", index, row))
    play = ScriptedPlay(chat, task, problem)
    steps = list(problem.steps)
    if len(steps) > 1 and rng.random() < errs["skip_step"]:
        steps = steps[:-1]
    answer = ""
    for step in steps:
        expression = step.expression
        if rng.random() < errs["slip"]:
            sign = next(s for s in (" + ", " - ", " * ") if s in expression)
            expression = expression.replace(sign, rng.choice([" + ", " - ", " * "]))
        call = ToolCall(name="calculate", arguments={"expression": expression})
        answer = play.call(call).text
        if expression != step.expression:
            break
    if rng.random() < errs["bridge_answer"]:
        answer = str(steps[0].value)
    tagged = answer if rng.random() < errs["no_answer_tag"] else f"<answer>{answer}</answer>"
    return Transcript.of(play.finish(tagged))


def drill_documents(chat: ChatFormat, rng: random.Random) -> Transcript:
    """Read documents, then restate every fact of one and cite them all. Teaches copying early."""
    names = fresh_names(rng, "train")
    ids = rng.sample(range(20), rng.choice([1, 2, 3]))
    tokenizer, drill = chat.tokenizer, Transcript()
    restated = []
    for id in ids:
        title, of = next(names), rng.choice([r.of for r in world.RELATIONS])
        relations = [r for r in world.RELATIONS if r.of == of]
        text, thoughts = [f"{title} is a {of}."], []
        for relation in rng.sample(relations, min(3, len(relations))):
            y, z = next(names), next(names)
            text.append(rng.choice(relation.facts).format(y=y, z=z))
            thoughts.append(relation.facts[0].format(y=y, z=z))
        rng.shuffle(thoughts)
        restated.append(f"<think>{title}. {' '.join(thoughts)}</think>")
        document = f"Document ID: {id}\n# {title}\n{' '.join(text)}"
        drill.add(chat.suffix([document], [_DRILL_CALL])[0], written=False)
    final = rng.choice(restated) + f"<cite>{', '.join(map(str, ids))}</cite>"
    drill.add(
        [*tokenizer.encode(final, add_special_tokens=False), tokenizer.eos_token_id], written=True
    )
    return drill


def drill_sums(chat: ChatFormat, rng: random.Random) -> Transcript:
    """Worked steps without a story. Teaches the tables early."""
    lines: list[str] = []
    while len(lines) < 10:
        a, b, sign = rng.randint(1, 99), rng.randint(2, 45), rng.choice("+-*/")
        if sign in "*/":
            b = rng.randint(2, 9)
        step = f"{a}{sign}{b}"
        if 1 <= stories.value(step) <= stories.HIGHEST and (sign != "/" or a % b == 0):
            lines.append(f"{step} = <<{step}={stories.value(step)}>>{stories.value(step)}")
    drill = Transcript()
    drill.add(chat.tokenizer.encode("\n".join(lines), add_special_tokens=False), written=True)
    return drill


_DRILL_CALL = ToolCall(name="retrieve_documents", arguments={})

Play = Callable[[ChatFormat, random.Random, int, Mapping[str, float]], Transcript]
MIXTURE: tuple[tuple[Play, int], ...] = ((play_world, 6), (play_story, 2), (play_toolmath, 2))


def plays(
    chats: Mapping[Play, ChatFormat], seed: int, start: int, stop: int
) -> Iterator[Transcript]:
    """Careless plays of all tasks, mixed; the problem of play i depends on i alone."""
    cycle = [play for play, share in MIXTURE for _ in range(share)]
    for index in range(start, stop):
        play = cycle[index % len(cycle)]
        yield play(chats[play], random.Random(f"play-{seed}-{index}"), index, CARELESS)


def drills(chat: ChatFormat, seed: int, start: int, stop: int) -> Iterator[Transcript]:
    for index in range(start, stop):
        rng = random.Random(f"drill-{seed}-{index}")
        yield drill_sums(chat, rng) if index % 3 == 0 else drill_documents(chat, rng)
