"""Plays problems with a policy and says how well it did, with intervals clustered by problem.

`evaluate` plays and measures; `summarise`, `compare` and `save_trajectories` only need rollouts.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flatline.errors import ConfigError, needing
from flatline.files import write_atomically
from flatline.rollout.record import Author, Finish, Rollout
from flatline.stats import UNKNOWN, Estimate, cluster_mean, paired_difference, pass_at_k
from flatline.tasks.base import ANSWER, COMBINED, Message, Problem, Task

EVENTS = ("tool_calls", "tool_errors", "malformed_calls", "malformed_answers")

Estimates = Mapping[str, Estimate]


class Player(Protocol):
    """What plays problems: the rollout engine, or a stand-in for it."""

    def play(
        self, jobs: Any, *, seed: int, on_done: Callable[[Rollout], None] | None = None
    ) -> list[Rollout]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How one policy did on a list of problems."""

    parts: Estimates
    """Mean of the combined reward and of every part, over the problems that have it."""
    per_hop: Mapping[int, Estimates]
    """The same for the problems of each hop count."""
    pass_at_k: Mapping[int, Estimate]
    """Chance that one of k plays is right, for k = 1, 2, 4, ... and the number of plays."""
    group_std: Estimate
    """Mean over problems of the std of the combined reward between plays: what GRPO learns from."""
    finish: Mapping[str, int]
    """How many plays ended for which reason."""
    events: Mapping[str, int]
    """How many calls, errors and malformed calls and answers there were."""
    samples: int
    """Plays of each problem."""
    tokens: int
    """Tokens the policy wrote."""
    seconds: float | None
    """Wall time of the plays; `None` when they were not timed."""
    about: Mapping[str, Any]
    """What was evaluated: task, model, datasets, seed, sampling."""
    problems: tuple[Problem, ...] = field(repr=False)
    """In the order they were given."""
    rollouts: tuple[Rollout, ...] = field(repr=False)
    """Problem by problem, sample by sample."""

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": _to_json(self.parts),
            "per_hop": {str(hops): _to_json(parts) for hops, parts in self.per_hop.items()},
            "pass_at_k": {str(k): chance.to_json() for k, chance in self.pass_at_k.items()},
            "group_std": self.group_std.to_json(),
            "finish": dict(self.finish),
            "events": dict(self.events),
            "problems": len(self.problems),
            "samples": self.samples,
            "tokens": self.tokens,
            "seconds": self.seconds,
            **self.about,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One policy minus another on the same problems and random numbers."""

    model: str
    """The one that counts as positive when it is better."""
    minus: str
    """The one it is compared with."""
    parts: Estimates
    """Mean difference of every part."""

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "minus": self.minus, "parts": _to_json(self.parts)}


def evaluate(
    problems: Sequence[Problem],
    player: Player,
    *,
    samples: int = 1,
    seed: int = 0,
    on_done: Callable[[Rollout], None] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Play every problem `samples` times and summarise."""
    with needing("Playing"):
        from flatline.rollout.engine import Job  # brings torch, which summaries do not need

    jobs = [Job(problem, sample) for problem in problems for sample in range(samples)]
    start = time.perf_counter()
    rollouts = player.play(jobs, seed=seed, on_done=on_done)
    seconds = time.perf_counter() - start
    about = {"seed": seed, **(about or {})}
    return summarise(problems, rollouts, seconds=seconds, about=about)


def summarise(
    problems: Sequence[Problem],
    rollouts: Iterable[Rollout],
    *,
    seconds: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Everything an evaluation reports, from finished plays."""
    groups = _groups(problems, rollouts)
    ordered = [rollout for group in groups for rollout in group]
    samples = len(groups[0])
    hops = {problem.id: problem.hops for problem in problems}
    right = np.array([[r.score.parts.get(ANSWER) == 1.0 for r in group] for group in groups])
    return Evaluation(
        parts=_part_means(ordered),
        per_hop={
            count: _part_means(r for r in ordered if hops[r.problem_id] == count)
            for count in sorted(set(hops.values()))
        },
        pass_at_k={k: pass_at_k(right.sum(axis=1), samples, k) for k in _ks(samples)},
        group_std=_group_std(groups),
        finish=_counted(Finish, (r.finish for r in ordered)),
        events=_counted(EVENTS, (name for r in ordered for name in r.events.elements())),
        samples=samples,
        tokens=sum(author is Author.MODEL for r in ordered for author in r.authors),
        seconds=seconds,
        about=dict(about or {}),
        problems=tuple(problems),
        rollouts=tuple(ordered),
    )


def compare(a: Evaluation, b: Evaluation) -> Comparison:
    """`b` minus `a`, play by play. Both must have played the same problems as often."""
    keys = [[(r.problem_id, r.sample) for r in side.rollouts] for side in (a, b)]
    if keys[0] != keys[1]:
        raise ConfigError(
            "The two evaluations did not sample the same problems the same number of times, so "
            "their rollouts cannot be paired.\n"
            "Evaluate both with the same --datasets, --limit and --samples."
        )
    pairs = list(zip(a.rollouts, b.rollouts, strict=True))
    return Comparison(
        model=str(b.about.get("model", "b")),
        minus=str(a.about.get("model", "a")),
        parts={name: _difference(name, pairs) for name in a.parts if name in b.parts},
    )


def save_trajectories(path: Path, task: Task, evaluation: Evaluation) -> None:
    """One JSON line per play. The file appears whole or not at all."""
    by_id = {problem.id: problem for problem in evaluation.problems}
    lines = (
        json.dumps(trajectory(task, by_id[r.problem_id], r), ensure_ascii=False)
        for r in evaluation.rollouts
    )
    write_atomically(path, lines)


def trajectory(task: Task, problem: Problem, rollout: Rollout) -> dict[str, Any]:
    """One play as plain data."""
    return {
        "problem_id": rollout.problem_id,
        "sample": rollout.sample,
        "answer": problem.answer,
        "hops": problem.hops,
        "messages": conversation(task, problem, rollout),
        "reward": rollout.score.reward,
        "parts": dict(rollout.score.parts),
        "notes": list(rollout.score.notes),
        "finish": rollout.finish.value,
        "events": dict(rollout.events),
        "weight_version": rollout.weight_version,
    }


def conversation(task: Task, problem: Problem, rollout: Rollout) -> list[Message]:
    """The play as chat messages: what the model was given, wrote and was told."""
    messages = task.messages(problem)
    for turn in rollout.turns:
        messages.append({"role": "assistant", "content": turn.text})
        messages.extend({"role": "tool", "content": text} for text in turn.observations)
    return messages


def _groups(problems: Sequence[Problem], rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    """The plays of each problem, both in order; every problem must have the same plays."""
    groups: dict[str, list[Rollout]] = {problem.id: [] for problem in problems}
    if len(groups) < len(problems):
        raise ValueError("problem ids must be unique")
    for rollout in rollouts:
        groups[rollout.problem_id].append(rollout)
    ordered = [sorted(group, key=lambda r: r.sample) for group in groups.values()]
    if not ordered or not ordered[0]:
        raise ValueError("nothing was sampled")
    expected = list(range(len(ordered[0])))
    if any([r.sample for r in group] != expected for group in ordered):
        raise ValueError("every problem must have the same number of samples")
    return ordered


def _part_means(rollouts: Iterable[Rollout]) -> dict[str, Estimate]:
    values: dict[str, list[float]] = {}
    clusters: dict[str, list[str]] = {}
    for rollout in rollouts:
        for name, value in _all_parts(rollout):
            values.setdefault(name, []).append(value)
            clusters.setdefault(name, []).append(rollout.problem_id)
    return {
        name: cluster_mean(values[name], clusters[name], bounds=(0.0, _ceiling(values[name])))
        for name in values
    }


def _all_parts(rollout: Rollout) -> Iterator[tuple[str, float]]:
    yield COMBINED, rollout.score.reward
    yield from rollout.score.parts.items()


def _difference(name: str, pairs: Sequence[tuple[Rollout, Rollout]]) -> Estimate:
    found = [(dict(_all_parts(a)), dict(_all_parts(b)), a.problem_id) for a, b in pairs]
    # A part may apply to some problems only; it then does so in both plays.
    found = [triple for triple in found if name in triple[0] and name in triple[1]]
    before, after, clusters = zip(*found, strict=True)
    a, b = [parts[name] for parts in before], [parts[name] for parts in after]
    return paired_difference(a, b, clusters, bounds=(0.0, _ceiling([*a, *b])))


def _group_std(groups: Sequence[Sequence[Rollout]]) -> Estimate:
    """One play has no spread: then nothing is known."""
    if len(groups[0]) < 2:
        return UNKNOWN
    reward_PG = np.array([[r.score.reward for r in group] for group in groups])
    # The sample std, as GRPO divides by; it is largest for one play at 0 and one at the ceiling.
    widest = _ceiling(reward_PG.ravel().tolist()) * float(np.sqrt(0.5))
    return cluster_mean(reward_PG.std(axis=1, ddof=1), np.arange(len(groups)), bounds=(0.0, widest))


def _ceiling(values: Sequence[float]) -> float:
    """The most a part can be: 1, unless a task scales its reward up and the values show it."""
    return max(1.0, float(np.ceil(max(values) - 1e-9)))


def _ks(samples: int) -> list[int]:
    powers = [2**i for i in range(samples.bit_length())]
    return sorted({*(k for k in powers if k <= samples), samples})


def _counted(names: Iterable[str], seen: Iterable[str]) -> dict[str, int]:
    """Counts with a zero for what never happened, so that the shape does not depend on the run."""
    counts = Counter(str(name) for name in seen)
    return {str(name): 0 for name in names} | dict(counts)


def _to_json(estimates: Estimates) -> dict[str, Any]:
    return {name: estimate.to_json() for name, estimate in estimates.items()}
