"""Reward functions for TRL that read what the task has already scored.

`combined` is the task's own reward and, unless `--reward` names a part, the only one with a
weight, so what is trained on is `Score.reward`. The parts are there to be seen: weight 0, but a
column of the completion log and a metric each. A part that does not apply to a problem is `None`,
which TRL leaves out of the mean.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from flatline.errors import ConfigError, DataError
from flatline.rollout.record import Rollout
from flatline.tasks.base import ANSWER, COMBINED, Message, Problem, Task
from flatline.training.environment import Environment, environment_reward, final_message

RewardFunction = Callable[..., list[float | None]]

_LOOKED_AT = 32
"""Problems that are asked which parts they have."""


def reward_functions(task: Task, problems: Sequence[Problem]) -> list[RewardFunction]:
    """The combined reward, then one function for each part."""
    return [combined, *(_part(name) for name in part_names(task, problems))]


def environment_functions(task: Task, problems: Sequence[Problem]) -> list[RewardFunction]:
    """The same, for episodes that TRL plays itself."""

    def combined(**batch: Any) -> list[float | None]:
        return _finite(environment_reward(**batch))

    return [combined, *(_environment_part(name) for name in part_names(task, problems))]


def reward_weights(functions: Sequence[RewardFunction], reward: str = COMBINED) -> list[float]:
    """Only one reward is trained on: the combined one, or a part of it."""
    names = [function.__name__ for function in functions]
    if reward not in names:
        raise ConfigError(
            f"--reward {reward!r} is no part of this task's reward.\n"
            f"There would be nothing to train on.\nIt takes: {', '.join(names)}."
        )
    return [float(name == reward) for name in names]


def says_right(functions: Sequence[str]) -> str | None:
    """Of these names, the one of the part that says whether an answer is right."""
    return ANSWER if ANSWER in functions else None


def combined(rollout: Sequence[Rollout], log_extra: Any = None, **_: Any) -> list[float | None]:
    """The task's reward of each rollout, and the columns of the completion log."""
    rewards = _finite([one.score.reward for one in rollout], [one.problem_id for one in rollout])
    if log_extra is not None:
        for name, column in _columns(rollout).items():
            log_extra(name, column)
    return rewards


def part_names(task: Task, problems: Sequence[Problem]) -> list[str]:
    """Every part that some problem has, in the task's order."""
    names: dict[str, None] = {}
    for problem in problems[:_LOOKED_AT]:
        names |= dict.fromkeys(task.episode(problem).score(None).parts)
    return list(names)


def _finite(rewards: Sequence[float], problems: Sequence[str] = ()) -> list[float | None]:
    """The rewards, all of which must be numbers."""
    for i, reward in enumerate(rewards):
        if not math.isfinite(reward):
            whose = f"problem {problems[i]!r}" if problems else f"rollout {i} of the batch"
            raise DataError(
                f"The reward of {whose} is {reward}, which is not a number.\n"
                "TRL would leave the rollout out without a word and train on the rest of its "
                "group.\nLook at the task's scoring: `flatline tasks check` tries known answers."
            )
    return list(rewards)


def _part(name: str) -> RewardFunction:
    def part(rollout: Sequence[Rollout], **_: Any) -> list[float | None]:
        return [one.score.parts.get(name) for one in rollout]

    part.__name__ = name
    return part


def _environment_part(name: str) -> RewardFunction:
    def part(
        completions: Sequence[Sequence[Message]], environments: Sequence[Environment], **_: Any
    ) -> list[float | None]:
        # TRL runs reward functions in their order, so `combined` has seen the episode end.
        pairs = zip(completions, environments, strict=True)
        episodes = [(said, env.episode) for said, env in pairs]
        return [
            None if episode is None else episode.score(final_message(said)).parts.get(name)
            for said, episode in episodes
        ]

    part.__name__ = name
    return part


def _columns(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """What the completion log says about each rollout, besides TRL's own columns."""
    return {
        "problem_id": [r.problem_id for r in rollouts],
        "finish": [r.finish.value for r in rollouts],
        "events": [json.dumps(dict(r.events)) for r in rollouts],
        "trajectory": [_trajectory(r) for r in rollouts],
        "weight_version": [r.weight_version for r in rollouts],
    }


def _trajectory(rollout: Rollout) -> str:
    """Every turn and what came back, as JSON."""
    turns = [
        {
            "text": turn.text,
            "observations": turn.observations,
            "documents": turn.documents,
            "dropped": turn.dropped,
        }
        for turn in rollout.turns
    ]
    return json.dumps(turns, ensure_ascii=False)
