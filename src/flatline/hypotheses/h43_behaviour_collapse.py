"""The policy gives up what the task needs: its tool, its thinking, or all but one phrase.

## What goes wrong
A shortcut wins early: guessing without a search is nearly as good and never fails in between, or
one phrase is safe. Variety disappears, and with it everything that could be learnt from; the reward
stays where the shortcut left it. The entropy may look fine.

## Sign
Suspected, in the rollouts of a run:

- the calls per rollout certainly fall to less than half of what they were while the reward does not
  rise;
- what the model writes in a rollout repeats itself (more than half of its groups of four tokens
  have been there before), certainly in the last steps and not in the first;
- the model certainly writes less than a fifth of what it wrote in the first step, and its answers
  are no better for it: it has stopped thinking, which can take two steps;
- certainly nine in ten completions of the last third, to different prompts, are one text, and were
  not at first. If no part of the reward can say how right answers are and the reward rises, this
  and the third are notes that point at a cause: the reward may pay for it.

In a log without rollouts:

- while the reward does not rise, completions certainly double in length and the share that a limit
  cuts off certainly rises by a tenth, and what ended is not certainly paid more (text without
  end). Where the reward falls, the last tenth of the entropies are all above twice every early
  one, and what ended is certainly paid less than at first, longer completions are enough, and that
  a limit cuts them (H04) is what comes of it;
- in the last tenth of the rows completions have less than a fifth of their first length, and
  certainly less than half;
- at certainly more than half of the rows all rewards are equal, and they and the mean length are
  one and the same, which is not that of the start (one answer to everything). The last two are
  notes if the reward rises and none of its parts certainly falls.

It ranks after every other suspect: a collapse is more often an effect than a cause. A missing tool
alone rules nothing out.

## Probe
Only with `flatline checkup --tools`, since it runs four times: the same problems with the tool's
output empty, from other problems, or gold. A policy whose reward certainly loses less than 0.05
without any output does not use its tool.

## Experiment
A planted fault against none; matched seeds, outcome is the held-out reward.

## Fix
Pay the use of the tool for a while (0.1 a good call); drop groups without variance; clip higher
above than below; go back to a checkpoint from before the collapse.

## Not to be confused with
H24 learning-rate: the policy is broken outright, and all it writes with it. H36 turn-credit: the
reward itself punishes calls. H41 tool-errors: calls fail, so giving them up is right. H37 and H38:
the reward rises.

## References
RAGEN (2504.20073: reward-std cliff, entropy drop, gradient spike); RAGEN-2; verl pull request 4998.
Thresholds: in 24 healthy lab runs with tools calls change by -9 to +20 %, and at most 15 % of what
is written is repetition; 0 of 26 alarm (interval 0 to 13 %). In all 26 rollouts end at 0.98 to 1.63
times the tokens of their first step; a real model on GSM8K at a rate of 2e-4 came to 0.03 within
two steps (docs/real-model.md); 0.2 lies between. What is tested in a log was written for real logs
(docs/log-readings.md) and has no false-alarm rate.
"""

import math
from dataclasses import replace

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level
from flatline.hypotheses.column_movement import change_of, column, ends, surely
from flatline.hypotheses.drift import Drift, drift_of, group_means, since_start
from flatline.hypotheses.groups import EQUAL, mean_of, prompts_of, reward_rises
from flatline.hypotheses.h04_context_truncation import paid_when_ended
from flatline.hypotheses.part_columns import parts_of
from flatline.hypotheses.right import UNDECIDED, candidates, right_part
from flatline.hypotheses.trend import LAST, thirds, trend_of
from flatline.rollout.record import Author
from flatline.stats import Estimate, cluster_mean, difference_of_means
from flatline.trace import Trace

GIVEN_UP = 0.5
"""Share of the calls at the start that is left. Healthy: 0.91 and more."""
FEWEST_CALLS = 0.5
"""Calls per rollout at the start below which there is nothing to give up."""
REPEATED = 0.5
"""Share of a rollout's groups of tokens that have been in it before. Healthy: up to 0.15."""
GRAM = 4
"""Tokens of a group."""
TERSE = 0.2
"""Share of the tokens at the start that is left. Healthy: 0.98 and more."""
BETTER = 0.05
"""Rise of the right answers that pays for writing less; the trend's own smallest change."""
RUNS_ON = 0.1
"""Rise of the share of completions that a limit cuts off, where only a log is there. A guess."""
TIMES = 2.0
"""Growth of the length that goes with it, or the change to the one answer that is left. A guess."""
OF_TEXT_WITHOUT_END = ("H04",)
"""What is no cause where the policy breaks."""
MOSTLY = 0.5
"""Share of a log's rows with equal rewards and one and the same length. A guess."""
FEWEST_ROWS = 3
"""Rows that show the length at the start."""
ONE_TEXT = 0.9
"""Share of late completions that are one text. Healthy: no text is as common."""
FEWEST_PROMPTS = 4
"""Prompts that must have the same answer: one prompt may well have one."""
SEVERITY = 0.5
"""Below that of every other suspect: a collapse is more often an effect than a cause."""


class BehaviourCollapse(Hypothesis):
    id = "H43"
    name = "behaviour-collapse"
    headline = "Your policy has stopped doing what the task needs."
    meaning = "The policy no longer does what could be rewarded."
    fix = "Go back to before the collapse; reward good calls, or drop groups of equal rewards."
    mechanism = "Calls per rollout fall to less than half; in the other arm they stay."

    def sign(self, trace: Trace) -> Finding:
        """Were calls given up, or does the model repeat itself?"""
        if not len(trace.rollouts):
            return self._from_steps(trace)
        return self._repeats(trace) or self._terse(trace) or self._same(trace) or self._calls(trace)

    def _calls(self, trace: Trace) -> Finding:
        drift = drift_of(trace, trace.rollouts["tool_calls"])
        if drift is None:
            return self.too_little("a run of at least six steps is needed")
        if drift.before < FEWEST_CALLS:
            return self._without_tool(trace)
        text = f"Calls per rollout go from {drift.before:.2f} to {drift.after:.2f}"
        if not _given_up(drift):
            return self.found(
                Level.OK,
                f"{text}.",
                measured=drift.after / drift.before,
                looked_at=drift.change.n,
            )
        if reward_rises(trace):
            return self.found(Level.NOTE, f"{text}, and the reward rises.", measured=drift.change)
        return self.found(
            Level.SUSPECT,
            f"{text}, and the reward does not rise.",
            headline="Your policy has stopped calling its tool.",
            measured=drift.change,
            expected=f"above {GIVEN_UP:.0%} of the start",
            severity=SEVERITY,
        )

    def _without_tool(self, trace: Trace) -> Finding:
        """No tool can be given up; thinking and variety can, and were looked at before."""
        tokens = since_start(trace, trace.rollouts["model_tokens"])
        if tokens is None or "completion" not in trace.rollouts:
            raise NotRecorded("rollouts.completion")
        prompts = _prompts(trace)
        if prompts < FEWEST_PROMPTS:
            return self.too_little(f"{FEWEST_PROMPTS - prompts} more prompts are needed")
        return self.found(
            Level.OK,
            f"A rollout has {tokens.after:.0f} tokens of its own, at first {tokens.before:.0f}, "
            "and different prompts get different answers. There is no tool to give up.",
            looked_at=tokens.change.n,
        )

    def _terse(self, trace: Trace) -> Finding | None:
        """Has the model stopped thinking?"""
        if "model_tokens" not in trace.rollouts:
            return None
        tokens = since_start(trace, np.log(np.maximum(trace.rollouts["model_tokens"], 1)))
        if tokens is None or not tokens.change.high < math.log(TERSE):
            return None
        answers = _answers(trace)
        worse = [name for name, values in answers.items() if _no_better(trace, values)]
        if right_part(trace) is None and candidates(trace):
            # Which part is right is open: one of these that falls may be it, one that rises too.
            falling = [name for name in worse if _falls(trace, answers[name])]
            if falling and len(worse) < len(answers):
                raise NotRecorded(UNDECIDED)
            worse = worse if len(worse) == len(answers) else falling
        if not worse:
            return self._paid_for(tokens) if "reward" in answers else None
        return self.found(
            Level.SUSPECT,
            f"The policy stops thinking: a rollout has {math.exp(tokens.after):.0f} tokens of its "
            f"own, at first {math.exp(tokens.before):.0f}, and "
            f"{' and '.join(_goes(trace, name, answers[name]) for name in worse)}.",
            headline="Your policy has stopped thinking before it answers.",
            measured=tokens.change,
            expected=f"above {TERSE:.0%} of the start",
            severity=SEVERITY,
        )

    def _paid_for(self, tokens: Drift) -> Finding:
        """Only the reward says how good answers are, and it rises."""
        return self.found(
            Level.NOTE,
            f"A rollout has {math.exp(tokens.after):.0f} tokens of the model's own, at first "
            f"{math.exp(tokens.before):.0f}, and the reward rises: it may pay for that.",
            measured=tokens.change,
            points_at_cause=True,
        )

    def _same(self, trace: Trace) -> Finding | None:
        """Do different prompts get one and the same answer?"""
        if "completion" not in trace.rollouts:
            return None
        found = thirds(group_means(trace, _usual_text(trace)), trace.groups().step)
        if found is None or _prompts(trace) < FEWEST_PROMPTS:
            return None
        first, last = mean_of(found.early), mean_of(found.late)
        if not last.low > ONE_TEXT or not first.high < MOSTLY:
            return None
        better = [name for name, v in _answers(trace).items() if not _no_better(trace, v)]
        text = f"{last.value:.0%} of the completions of the last third of the steps are one text"
        return self.found(
            Level.NOTE if better else Level.SUSPECT,
            f"The policy collapses into one answer: {text}, of the first third {first.value:.0%}"
            f"{', and the reward rises' if better else ''}.",
            measured=last,
            expected=f"below {MOSTLY:.0%}",
            severity=SEVERITY,
            points_at_cause=True,
        )

    def _from_steps(self, trace: Trace) -> Finding:
        """Of a log: text without end, nearly no text, or one answer to everything."""
        found = None if reward_rises(trace) else self._no_end(trace)
        found = found or self._shrinks(trace) or self._one_answer(trace)
        if found is None:
            raise NotRecorded("rollouts.tool_calls")
        return found

    def _shrinks(self, trace: Trace) -> Finding | None:
        """Is next to nothing written at the end, whatever the reward makes of it?"""
        if "completion_length" not in trace.steps:
            return None
        length = trace.steps["completion_length"]
        known = np.log(length[np.isfinite(length) & (length > 0)])
        last = known[-max(LAST, len(known) // 10) :]
        early = known[: len(known) // 3]
        if len(early) < LAST:
            return None
        less = difference_of_means(early, last)
        if less.value > math.log(TERSE) or not less.high < -math.log(TIMES):
            return None
        text = (
            f"The policy stops writing: completions have {math.exp(last.mean()):.0f} tokens in the "
            f"last {len(last)} rows, at first {math.exp(early.mean()):.0f}"
        )
        return self._by_reward(trace, text, less, f"above {TERSE:.0%} of the start")

    def _by_reward(self, trace: Trace, text: str, measured: Estimate, expected: str) -> Finding:
        """A collapse, unless the reward and every part of it may pay for it."""
        falling = _falling_parts(trace)
        paid = reward_rises(trace) and not falling
        told = f", while {' and '.join(falling)}." if falling else "."
        return self.found(
            Level.NOTE if paid else Level.SUSPECT,
            f"{text}{told}{' The reward rises: it may pay for that.' if paid else ''}",
            measured=measured,
            expected=expected,
            severity=SEVERITY,
            points_at_cause=True,
        )

    def _no_end(self, trace: Trace) -> Finding | None:
        if "completion_length" not in trace.steps or "truncated_share" not in trace.steps:
            return None
        step, length = trace.steps["step"], trace.steps["completion_length"]
        size = np.log(np.where(length > 0, length, np.nan))
        tokens, cut = thirds(size, step), thirds(trace.steps["truncated_share"], step)
        if tokens is None or cut is None:
            return None
        more = difference_of_means(cut.early, cut.late)
        longer = difference_of_means(tokens.early, tokens.late)
        broken = _breaks(trace)
        if more.low < RUNS_ON or longer.low < (0 if broken else math.log(TIMES)):
            return None
        ended = paid_when_ended(trace)
        if ended is not None and ended.better:
            return None  # good answers that grow into the limit, which is H04's
        found = self.found(
            Level.SUSPECT,
            f"The policy collapses into text without end: completions went from "
            f"{math.exp(tokens.early.mean()):.0f} to {math.exp(tokens.late.mean()):.0f} tokens, "
            f"and a limit cuts off {cut.late.mean():.0%} of them, at first "
            f"{cut.early.mean():.0%}. {broken or 'No lasting rise of the reward can be seen.'}",
            headline="Your policy has collapsed into text without end.",
            measured=more,
            expected=f"a rise below {RUNS_ON:.0%}",
            severity=SEVERITY,
        )
        return replace(found, explains=(*self.explains, *OF_TEXT_WITHOUT_END)) if broken else found

    def _one_answer(self, trace: Trace) -> Finding | None:
        names = ("completion_length", "reward")
        if not all(name in trace.steps for name in names) or "reward_std" not in trace.metric_names:
            return None
        length, reward, spread = (
            *(trace.steps[name] for name in names),
            trace.metric("reward_std"),
        )
        known = np.isfinite(length) & np.isfinite(reward) & np.isfinite(spread)
        length, reward, dead = length[known], reward[known], spread[known] < EQUAL
        pairs, times = np.unique(np.stack([length, reward])[:, dead], axis=1, return_counts=True)
        if not len(times):
            return None
        usual, earned = pairs[:, times.argmax()].tolist()
        start = float(length[:FEWEST_ROWS].mean())
        alike = (dead & (length == usual) & (reward == earned))[FEWEST_ROWS:]
        share = cluster_mean(alike, range(len(alike)))
        if not share.low > MOSTLY or start / TIMES <= usual <= TIMES * start:
            return None
        text = (
            f"The policy collapses into one answer: at {alike.sum()} of {len(alike)} steps every "
            f"reward is {earned:.3g} and completions have {usual:g} tokens, at first {start:.0f}"
        )
        return self._by_reward(trace, text, share, f"below {MOSTLY:.0%} of the steps")

    def _repeats(self, trace: Trace) -> Finding | None:
        steps = trace.token_steps
        if len(steps) < 2:
            return None
        first, last = _repetition(trace, int(steps[0])), _repetition(trace, int(steps[-1]))
        if not last.low > REPEATED or not first.high < REPEATED or reward_rises(trace):
            return None
        return self.found(
            Level.SUSPECT,
            f"{last.value:.0%} of what a rollout says repeats what it said before, at first "
            f"{first.value:.0%}.",
            headline="Your policy has started to repeat itself.",
            measured=last,
            expected=f"below {REPEATED:.0%}",
            severity=SEVERITY,
        )


def _breaks(trace: Trace) -> str:
    """Says so where a log's reward falls, its entropy explodes, and what no limit cut off is
    certainly paid less as well: then the limit is not what costs reward."""
    trend, ended = trend_of(trace), paid_when_ended(trace)
    entropy = column(trace, "entropy")
    entropy = entropy[np.isfinite(entropy)]
    early, last = entropy[: len(entropy) // 3], entropy[-max(LAST, len(entropy) // 10) :]
    if trend is None or not trend.falls or len(early) < LAST:
        return ""
    # Rows of a policy that breaks are too alike for an interval; so far apart they need none.
    if last.min() < TIMES * max(early.max(), 0) or (ended is not None and not ended.worse):
        return ""
    return (
        f"The entropy goes from {early.mean():.2g} to {last.mean():.2g} nat per token, and the "
        "reward falls."
    )


def _falling_parts(trace: Trace) -> list[str]:
    """Parts of the reward in a log that certainly fall, in words."""
    found = parts_of(trace)
    if found is None or not found.named:
        return []
    went = {n: v for n, v in found.moving.items() if _part_falls(v, found.step)}
    ended = {name: ends(values, found.step) for name, values in went.items()}
    return [f"`{n}` goes from {before:.2g} to {after:.2g}" for n, (before, after) in ended.items()]


def _part_falls(values: np.ndarray, step: np.ndarray) -> bool:
    """Certainly, or so far that no late row reaches any early one."""
    found = thirds(values, step)
    apart = found is not None and len(found.late) >= LAST and found.late.max() < found.early.min()
    return apart or surely(change_of(values, step)) < 0


def _usual_text(trace: Trace) -> np.ndarray:
    """Of each rollout, whether it is the text that is most common in the last third."""
    codes = trace.rollouts.coded("completion").codes
    step = trace.rollouts["step"]
    steps = np.unique(step)
    late = codes[step >= steps[-max(1, len(steps) // 3)]]
    return np.asarray(codes == np.bincount(late).argmax(), dtype=float)


def _prompts(trace: Trace) -> int:
    return len(np.unique(prompts_of(trace)))


def _answers(trace: Trace) -> dict[str, np.ndarray]:
    """What says how right answers are: the part that does, all that could, else the reward."""
    name, parts = right_part(trace), trace.parts()
    names = candidates(trace) if name is None else [name]
    return {name: parts[name] for name in names} or {"reward": trace.rollouts["reward"]}


def _no_better(trace: Trace, answers: np.ndarray) -> bool:
    """Whether they have not improved since the start, nor do so later on."""
    since, later = since_start(trace, answers), drift_of(trace, answers)
    if since is None or later is None:
        return False
    return since.change.low <= 0 and later.change.value <= BETTER


def _falls(trace: Trace, answers: np.ndarray) -> bool:
    since = since_start(trace, answers)
    return since is not None and since.change.high < 0


def _goes(trace: Trace, name: str, answers: np.ndarray) -> str:
    since = since_start(trace, answers)
    assert since is not None
    return f"`{name}` goes from {since.before:.2f} to {since.after:.2f}"


def _given_up(drift: Drift) -> bool:
    return drift.change.high < (GIVEN_UP - 1) * drift.before


def _repetition(trace: Trace, step: int) -> Estimate:
    """Share of the model's groups of tokens that its rollout already holds; `n` counts groups of
    rollouts."""
    tokens = trace.tokens([step])
    own = tokens.author == Author.MODEL
    row, ids = tokens.row[own], tokens.ids[own]
    cuts = np.flatnonzero(np.diff(row)) + 1
    share = np.full(len(tokens.rollout_rows), np.nan)
    for rows, written in zip(np.split(row, cuts), np.split(ids, cuts), strict=True):
        if len(written) > GRAM:
            grams = np.lib.stride_tricks.sliding_window_view(written, GRAM)
            share[rows[0]] = 1 - len(np.unique(grams, axis=0)) / len(grams)
    group = trace.groups().index[tokens.rollout_rows]
    known = np.isfinite(share)
    return cluster_mean(share[known], group[known])
