"""What if the tool had answered otherwise? The same problems, the same seeds, other observations.

    use = tool_use(built)        # a trainer of ours; None where the task has no tool
    print(use.finding().text)

The policy plays four times: with the tool as it is, with an empty answer to every call, with what
the gold script of another problem finds, and with what its own gold script finds, call by call. Its
own calls are run and scored all the while; only what it reads is exchanged. So what the reward
loses without output is what the policy makes of it, and what it gains with gold is what a tool that
cannot miss, asked by someone who knows what to ask for, would add. Differences are paired by
problem, and `n` counts problems.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.diagnosis.checkup import subject_of
from flatline.diagnosis.report import Report, rank
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Level
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.stats import Estimate, cluster_mean, paired_difference
from flatline.tasks.altered import Altered, Reply, empty, gold_observations
from flatline.tasks.base import Observation, Problem, Task

if TYPE_CHECKING:
    from flatline.rollout.record import Rollout
    from flatline.training.trainer import Built

PROBLEMS = 128
"""Problems that are played: enough to tell a change of 0.05 from none in the lab."""
SMALLEST = 0.05
"""A change of the reward that matters; the smallest of a trend too."""
EMPTY, SHUFFLED, GOLD = "empty", "shuffled", "gold"
"""What the tool's output is exchanged for."""
_SAID = {
    EMPTY: "empty tool output",
    SHUFFLED: "the tool output of another problem",
    GOLD: "the tool output of the gold script",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What the reward owes to the tool, and what a perfect tool would add."""

    task: str
    """Name of the task."""
    reward: Estimate
    """With the tool as it is."""
    changes: Mapping[str, Estimate]
    """Change of the reward by what the output was exchanged for: empty, shuffled, gold."""
    right: Mapping[str, Estimate]
    """The same of the share of right answers."""
    calls: float
    """Answered calls per episode, with the tool as it is."""
    documents: bool
    """Whether the tool finds documents, so that it is a retriever."""

    @property
    def unused(self) -> bool:
        """Whether the reward certainly owes less than matters to what the tool says."""
        return self.calls == 0 or self.changes[EMPTY].low > -SMALLEST

    def finding(self) -> Finding:
        """What that means, in the words of a checkup."""
        told = [_sentence(name, change) for name, change in self.changes.items()]
        level, verdict = self._verdict()
        return BehaviourCollapse().found(
            level,
            verdict,
            measured=self.changes[EMPTY],
            expected=f"a loss above {SMALLEST} without tool output",
            evidence=[Evidence(text=text) for text in told],
            fix="Look at a transcript: does the answer need what the tool found, and is it read?",
        )

    def _verdict(self) -> tuple[Level, str]:
        """The level and the sentence that the differences add up to."""
        gold, loss = self.changes[GOLD], self.changes[EMPTY]
        finder = "retriever" if self.documents else "asking of the tool"
        if self.calls == 0:
            return Level.SUSPECT, "The policy never calls its tool."
        if self.unused:
            return Level.SUSPECT, (
                f"The policy does not use its tool: without any output the reward changes by "
                f"{_signed(loss)}."
            )
        used = f"The tool is used: without its output the reward changes by {_signed(loss)}."
        if gold.low > 0 and gold.value >= SMALLEST:
            return Level.NOTE, (
                f"{used} The {finder} is the ceiling: with gold output the reward changes by "
                f"{_signed(gold)}."
            )
        if gold.high < SMALLEST:
            return Level.NOTE, (
                f"{used} Gold output does not help ({_signed(gold)}): the reading of it is the "
                f"ceiling, not the {finder}."
            )
        return Level.OK, f"{used} With gold output it changes by {_signed(gold)}."

    def to_json(self) -> dict[str, Any]:
        """The stable shape."""
        return {
            "version": 1,
            "task": self.task,
            "reward": self.reward.to_json(),
            "calls": self.calls,
            "changes": {name: one.to_json() for name, one in self.changes.items()},
            "right": {name: one.to_json() for name, one in self.right.items()},
            "finding": self.finding().to_json(),
        }


def tool_use(
    built: "Built", *, problems: int = PROBLEMS, on_play: Callable[[str], None] | None = None
) -> ToolUse | None:
    """Play with the tool as it is and three times otherwise; None where the task has no tool.

    Held-out problems are played where there are some. The trainer is left as it was, bit for bit.
    """
    if not built.task.tools:
        return None
    chosen = (built.heldout or built.problems)[:problems]
    plays: dict[str, list[Rollout]] = {}
    with subject_of(built).untouched():
        for name, reply in {"": None, **_replies(built.task, chosen)}.items():
            if on_play:
                on_play(_SAID.get(name, "the tool as it is"))
            plays[name] = _play(built, chosen, reply)
    return _compared(built.task, plays)


def with_tool_use(report: Report, use: ToolUse | None, task: str) -> Report:
    """The report of a checkup with what the tool is worth; in place of what it could not tell."""
    hypothesis = BehaviourCollapse()
    none = hypothesis.not_applicable(f"{task} has no tools.", excluded_by="the task")
    found = none if use is None else use.finding()
    others = [f for f in report.findings if f.hypothesis != found.hypothesis or f.level in ALARMS]
    return replace(report, findings=tuple(rank([*others, found])))


def _replies(task: Task, problems: Sequence[Problem]) -> dict[str, Reply]:
    """What is shown instead of what was found, by name."""
    gold = {problem.id: gold_observations(task, problem) for problem in problems}
    ids = [problem.id for problem in problems]
    others = {id: gold[other] for id, other in zip(ids, [*ids[1:], *ids[:1]], strict=True)}
    return {EMPTY: empty, SHUFFLED: _from(others), GOLD: _from(gold)}


def _from(observations: Mapping[str, Sequence[Observation]]) -> Reply:
    """The observations of a script, one for each call; the last again where there are more."""

    def reply(problem: Problem, answered: int, found: Observation) -> Observation:
        script = observations[problem.id]
        return script[min(answered, len(script) - 1)] if script else found

    return reply


def _play(built: "Built", problems: Sequence[Problem], reply: Reply | None) -> "list[Rollout]":
    """Each problem once, with random numbers that every play shares."""
    from flatline.rollout.engine import Job  # brings torch

    jobs = [Job(problem, 0) for problem in problems]
    with built.rollouts.playing(built.trainer) as engine:
        task = engine.task
        if reply is not None:
            engine.task = Altered(task, reply)
        try:
            return engine.play(jobs, seed=built.config.eval_seed)
        finally:
            engine.task = task


def _compared(task: Task, plays: "Mapping[str, Sequence[Rollout]]") -> ToolUse:
    as_it_is = plays[""]
    ids = [rollout.problem_id for rollout in as_it_is]
    rewards = {name: [one.score.reward for one in played] for name, played in plays.items()}
    right = {name: [_right(one) for one in played] for name, played in plays.items()}
    top = max(1.0, *(value for values in rewards.values() for value in values))

    def changes(values: Mapping[str, list[float]], top: float) -> dict[str, Estimate]:
        return {
            name: paired_difference(values[""], values[name], ids, bounds=(0.0, top))
            for name in (EMPTY, SHUFFLED, GOLD)
        }

    return ToolUse(
        task=task.name,
        reward=cluster_mean(rewards[""], ids, bounds=(0.0, top)),
        changes=changes(rewards, top),
        right=changes(right, 1.0),
        calls=float(np.mean([one.events["tool_calls"] for one in as_it_is])),
        documents=any(turn.documents for one in plays[GOLD] for turn in one.turns),
    )


def _right(rollout: "Rollout") -> float:
    return float(rollout.score.parts.get("exact_match", 0.0))


def _sentence(name: str, change: Estimate) -> str:
    return f"with {_SAID[name]} the reward changes by {_signed(change)}, n={change.n} problems"


def _signed(change: Estimate) -> str:
    return f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
