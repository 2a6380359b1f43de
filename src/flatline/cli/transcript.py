"""A play as readable turns. All text in it is untrusted, so nothing is ever parsed as markup."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from flatline.cli.text import shortened, visible
from flatline.tasks.base import BadToolCall, Message, Problem, Score, Task, ToolCall

if TYPE_CHECKING:  # these would bring numpy
    from flatline.evaluate import Evaluation
    from flatline.rollout.record import Rollout

STYLES = {
    "system": "dim",
    "user": "cyan",
    "assistant": "green",
    "tool": "yellow",
    "gold": "magenta",
}
LONGEST = 4000
"""Characters shown of one message."""


def show_rollout(task: Task, problem: Problem, rollout: "Rollout") -> RenderableType:
    """One play: every message, then what it earned."""
    from flatline.evaluate import conversation

    title = f"{problem.id}, sample {rollout.sample}: reward {rollout.score.reward:.3f}"
    events = ", ".join(f"{name} {count}" for name, count in rollout.events.items() if count)
    ending = [f"finish: {rollout.finish.value}", f"gold answer: {problem.answer}"]
    ending += [f"events: {events}"] if events else []
    return Group(
        Rule(Text(visible(title))),
        *_turns(conversation(task, problem, rollout)),
        _score(rollout.score),
        *(Text(visible(line), style="dim") for line in ending),
    )


def show_problem(task: Task, problem: Problem) -> RenderableType:
    """One problem with its tools, and the gold script played on it."""
    tools = ", ".join(f"{tool.name}({', '.join(tool.parameters)})" for tool in task.tools)
    facts = [f"hops: {problem.hops}", f"gold answer: {problem.answer}", f"tools: {tools or 'none'}"]
    played, score = _play_gold(task, problem)
    return Group(
        Rule(Text(visible(problem.id))),
        *(Text(visible(line), style="dim") for line in facts),
        *_turns(task.messages(problem)),
        Rule(Text("the gold script")),
        *_turns(played),
        _score(score),
    )


def chosen_rollouts(evaluation: "Evaluation", count: int) -> "list[tuple[Problem, Rollout]]":
    """The first plays of the first problems: chosen before looking, so they flatter nobody."""
    by_id = {problem.id: problem for problem in evaluation.problems}
    first = sorted(evaluation.rollouts, key=lambda rollout: rollout.sample)[:count]
    return [(by_id[rollout.problem_id], rollout) for rollout in first]


def _turns(messages: Iterable[Message]) -> list[RenderableType]:
    return [turn for message in messages for turn in _turn(message)]


def _turn(message: Message) -> tuple[RenderableType, RenderableType]:
    style = STYLES.get(message["role"], "")
    text = visible(shortened(str(message["content"]), limit=LONGEST)) or "(empty)"
    head = Text(visible(str(message["role"])), style=f"bold {style}")
    return head, Padding(Text(text, style=style), (0, 0, 0, 2))


def _score(score: Score) -> Text:
    parts = "  ".join(f"{name} {value:.2f}" for name, value in score.parts.items())
    notes = "".join(f"\nnote: {note}" for note in score.notes)
    return Text(visible(f"reward {score.reward:.3f}  ({parts}){notes}"), style="bold")


def _play_gold(task: Task, problem: Problem) -> tuple[Sequence[Message], Score]:
    episode = task.episode(problem)
    messages: list[Message] = []
    final: str | None = None
    for act in task.gold(problem):
        if isinstance(act, ToolCall | BadToolCall):
            messages.append({"role": "assistant", "content": _as_call(act)})
            messages.append({"role": "tool", "content": episode.observe(act).text})
        else:
            final = act
            messages.append({"role": "assistant", "content": act})
    return messages, episode.score(final)


def _as_call(call: ToolCall | BadToolCall) -> str:
    if isinstance(call, BadToolCall):
        return call.text
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
