"""Measurements that need to know the task: scripted episodes and the evaluation's path."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flatline.live.measure.played import Recorded
from flatline.live.measure.short_plays import TURN, longest_turn, turns_of, written_tokens
from flatline.live.records import Floats, HeldoutPath, Oracle, OracleCase
from flatline.live.trl.measure.recorded import in_force
from flatline.rollout.engine import Job
from flatline.rollout.record import Author, Finish, Rollout
from flatline.tasks.base import COMBINED, Problem, Score, Task
from flatline.tasks.check import GOLD
from flatline.tasks.check import play as play_script
from flatline.training.environment import PROBLEM_ID, environment_rows
from flatline.training.rollouts import step_seed

if TYPE_CHECKING:
    from flatline.training.trainer import Built

OF_A_GROUP = 2
"""Rollouts of each group that are played on the evaluation's path."""
ANSWER = "exact_match"
"""The part of every task's reward that says whether the answer is right."""
NO_DIFFERENCE = 1e-6
"""Rewards pass through single precision."""


def oracle(built: "Built", problems: Sequence[Problem]) -> Oracle:
    """Gold and every corruption, paid by the reward functions that the trainer has."""
    scripts = [(problem, *case) for problem in problems for case in _cases(built.task, problem)]
    if built.config.reward != COMBINED:  # a part alone need not tell every corruption from gold
        scripts = [one for one in scripts if one[1] == GOLD]
    rollouts = [_scripted(problem, score) for problem, _, score in scripts]
    rewards = paid(built, [problem for problem, _, _ in scripts], rollouts)
    gold = {p.id: r for (p, name, _), r in zip(scripts, rewards, strict=True) if name == GOLD}
    cases = [
        OracleCase(problem=p.id, script=name, reward=float(r), gold_reward=float(gold[p.id]))
        for (p, name, _), r in zip(scripts, rewards, strict=True)
    ]
    spoiled = [case for case in cases if case.script != GOLD]
    return Oracle(
        problems=len(problems),
        gold_R=np.array(list(gold.values())),
        hops_R=np.array([float(problem.hops) for problem in problems]),
        below_maximum=tuple(c for c in cases if c.script == GOLD and c.reward < 1 - NO_DIFFERENCE),
        not_below_gold=tuple(c for c in spoiled if c.reward > c.gold_reward - NO_DIFFERENCE),
        played=len(spoiled),
    )


def _cases(task: Task, problem: Problem) -> Iterator[tuple[str, Score]]:
    """Scripted episodes. Gold is about the reward, not the search: it is run with a retriever that
    cannot miss, where the task has one."""
    choose = getattr(task, "with_retriever", None)
    sure = task if choose is None else choose("golden")
    loud = task if choose is None else choose("bm25")
    yield GOLD, play_script(sure, problem, sure.gold(problem))
    for name, script in sure.corruptions(problem).items():
        stage = loud if name == "dump_all_documents" else sure
        yield name, play_script(stage, problem, script)


def _scripted(problem: Problem, score: Score) -> Rollout:
    """A rollout as the engine would hand it to the reward functions."""
    return Rollout(
        problem_id=problem.id,
        sample=0,
        prompt_ids=[0],
        completion_ids=[0],
        authors=[Author.MODEL],
        logprobs=[0.0],
        turns=[],
        finish=Finish.ANSWERED,
        score=score,
        events=Counter(),
        weight_version=0,
    )


def paid(built: "Built", problems: Sequence[Problem], rollouts: Sequence[Rollout]) -> Floats:
    """What the trainer pays for each: its reward functions, weighted as it weighs them.

    Each is paid for alone, as a group of equals: what a batch does to the rewards of others is not
    the reward functions' fault.
    """
    pairs = zip(problems, rollouts, strict=True)
    return np.array([_paid(built, problem, rollout) for problem, rollout in pairs])


def _paid(built: "Built", problem: Problem, rollout: Rollout) -> float:
    size = built.trainer.num_generations
    (row,) = environment_rows(built.task, [problem])
    inputs = [{**row, "rollout": rollout} for _ in range(size)]
    text = rollout.turns[-1].text if rollout.turns else ""
    completion = [{"role": "assistant", "content": text}]
    rewards_BF = built.trainer._calculate_rewards(
        inputs, [row["prompt"]] * size, [completion] * size, [rollout.completion_ids] * size
    )
    weights_F = built.trainer.reward_weights.to(rewards_BF.device)
    return float((rewards_BF[0] * weights_F).nansum())


def heldout_path(built: "Built", recorded: Recorded, groups: Sequence[int]) -> HeldoutPath:
    """Rollouts of the batch, played once more as the held-out evaluation plays."""
    trainer, rows = built.trainer, recorded.played.part(groups).rows
    chosen = _quick(rows, trainer.num_generations)
    jobs, rows = [_jobs(built, rows)[at] for at in chosen], [rows[at] for at in chosen]
    longest = max((longest_turn(row["rollout"]) for row in rows if row.get("rollout")), default=0)
    seed = step_seed(built.config.seed, trainer.state.global_step)
    with built.rollouts.playing(trainer) as engine:
        there = in_force(engine)
        with turns_of(engine, max(TURN, longest)):
            evaluated = engine.play(jobs, seed=seed)
    pairs = list(zip((row.get("rollout") for row in rows), evaluated, strict=True))
    same = [a is not None and a.completion_ids == b.completion_ids for a, b in pairs]
    return HeldoutPath(
        problems=len({job.problem.id for job in jobs}),
        prompts_equal=all(a is not None and a.prompt_ids == b.prompt_ids for a, b in pairs),
        same_completion=sum(same) / len(same),
        training_reward=recorded.trace.rollouts["reward"][chosen],
        heldout_reward=np.array([one.score.reward for one in evaluated]),
        rescored=paid(built, [job.problem for job in jobs], evaluated),
        limits={k: (v, there[k]) for k, v in recorded.in_force.items() if v != there[k]},
    )


def _quick(rows: Sequence[Mapping[str, Any]], size: int) -> list[int]:
    """Of each group the rollouts with the fewest tokens of the model, among those whose turns were
    short, where it has such. With the same random numbers the same turns are written again."""
    played = [row.get("rollout") for row in rows]
    longest = [longest_turn(one) if one else 0 for one in played]
    tokens = [written_tokens(one) if one else 0 for one in played]
    chosen: list[int] = []
    for start in range(0, len(rows), size):
        group = range(start, min(start + size, len(rows)))
        quick = sorted((at for at in group if longest[at] <= TURN), key=lambda at: tokens[at])
        chosen += sorted(quick[:OF_A_GROUP]) or [min(group, key=lambda at: longest[at])]
    return chosen


def _jobs(built: "Built", rows: Sequence[Mapping[str, Any]]) -> list[Job]:
    """The jobs that the trainer made of these rows."""
    problems = {problem.id: problem for problem in built.problems}
    size = built.trainer.num_generations
    return [Job(problems[row[PROBLEM_ID]], at % size) for at, row in enumerate(rows)]


def solved(built: "Built", first: int, last: int) -> Floats:
    """Whether the policy solves each of some training problems, played once."""
    jobs = [Job(problem, 0) for problem in built.problems[first:last]]
    with built.rollouts.playing(built.trainer) as engine:
        played = engine.play(jobs, seed=built.config.seed)
    return np.array([float(one.score.parts.get(ANSWER, 0.0) > 0) for one in played])
