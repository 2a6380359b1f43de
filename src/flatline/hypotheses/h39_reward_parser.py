"""The reward misreads answers: right ones are paid as wrong, or wrong ones as right.

## What goes wrong
A parser looks in the wrong place, trips over a type and swallows the error, or compares without
normalising (case, punctuation, aliases). Right answers then earn what wrong ones earn. A share e of
misread answers shrinks the signal to 1 - 2e, and at one half nothing is left.

## Sign
- Right answers paid as wrong: completions that end with exactly one marked answer (`<answer>`,
  `\boxed{}`, `####`) which equals the recorded gold answer after SQuAD's normalisation, and which
  are paid as wrong or with the lowest reward of the run. If nobody marks anything and completions
  are a few words, each is its answer. Healthy: none. Suspected if the interval of their share
  excludes 2 % on three prompts or more; a reward may have a reason to refuse them, so look at the
  quoted ones.
- Right answers in the form that most completions of this run have, which always earn what wrong
  ones do, on three prompts or more and for other gold than elsewhere: suspected as well.
- Wrong answers paid as right, suspected in the same way: numbers other than the gold number, where
  no right answer is paid as wrong.
- Pieces of the gold answer that break off inside a word, or empty completions, which earn what the
  whole of it does while other wrong answers earn less, on three prompts or more: suspected.
- A part of the reward that is 0 on every rollout: noted. Suspected if all prompts end with an
  opening tag (`<think>`), which no completion therefore has, and right answers after the closing
  tag earn nothing of that part, or its name is about the form.

## Probe
Scripted episodes through the trainer's real reward functions: gold must earn the maximum and no
corruption may earn more than gold. Then the sign is read from one sampled batch.

## Experiment
First a replay, which is mostly enough: right answers that were paid as wrong get what right answers
usually earn, and the advantages are computed again. If these nearly agree with the ones that were
trained on, the parser is not the cause. Then a planted fault against none, matched seeds; your own
reward function is not a setting, so train before and after the fix.

## Fix
Normalise both sides, accept aliases, accept tool calls as dicts and as objects, and let a parse
error raise or be counted; never turn it into 0.

## Not to be confused with
H33 group-integrity: rewards belong to other rollouts, so wrong answers are paid as right too. H05
reward-signal: the reward is noisy or pays for something else. H32 zero-variance-groups: a reward so
easy that almost every rollout earns it also pays wrong answers. H08 evaluation-mismatch: the two
scorers differ; the training one may still be right.

## References
The seeds' reward reads `completion[-1].tool_calls[-1].function.arguments` and maps errors to 0.
open-r1 issues 293 and 560; NeMo-RL issue 431 (exceptions become 0); AReaL issue 548 (timeouts).
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.hypotheses.answers import Judged, judge, looked_at
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level, Replay
from flatline.hypotheses.groups import unless_batch_alarms
from flatline.hypotheses.opened_tags import Opened, opened_by_prompts
from flatline.hypotheses.own_forms import Unpaid, unpaid_in_form
from flatline.hypotheses.paid_pieces import Pieces, paid_pieces
from flatline.hypotheses.replay import advantages, agreement, decide, trained
from flatline.stats import cluster_mean
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.records import Oracle, OracleCase
    from flatline.live.subject import Subject

MISREAD = 0.02
"""Share of right answers paid as wrong that a sound reward stays below. Healthy: 0."""
FEWEST = 3
"""Prompts that must show it."""
BOTH_WAYS = 0.5
"""As many wrong answers paid as right, against right ones paid as wrong: rewards changed places."""
SHORT = 0.02
"""What gold may lack of the maximum: crumbs are H01's and H05's business."""
SCATTERED = 4
"""Distinct rewards of gold episodes above which the reward is noisy or mixed, which is H05."""
SATURATED = 0.5
"""Share of the corruptions that earn as much as gold above which the reward is too easy: H32."""
READ = 0.5
"""Share of the rollouts whose answer must have been read before a replay rules the parser out."""
NEARLY_ALL = 0.9
"""Share of the wrong answers, paid as right, from which on nothing tells them apart."""
GIFTS = "Your reward pays wrong answers as right."
SAME_FOR_ALL = "Your reward pays every answer the same, right or wrong."
SHOWN = 8
"""Gold answers that are listed."""
CONSTANT = 32
"""Prompts on which a part that is always 0 is worth a note."""


class RewardParser(Hypothesis):
    id = "H39"
    name = "reward-parser"
    headline = "Your reward function misreads answers."
    explains = ("H08", "H05", "H32", "H45")
    meaning = "The policy is punished for right answers, so it cannot learn to give them."
    fix = "Score the quoted completions by hand, fix the reward function, count its exceptions."
    mechanism = "Right answers are paid as wrong; in the other arm none is."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Are right answers paid as right?"""
        opened = opened_by_prompts(trace)
        if opened is not None:
            return self._opened(trace, opened)
        unpaid = unpaid_in_form(trace)
        if unpaid is not None:
            return self._unpaid(trace, unpaid)
        pieces = paid_pieces(trace)
        if pieces is not None:
            return self._pieces(trace, pieces)
        judged = judge(trace)
        right, missed = judged.right, judged.missed
        gifts = self._gifts(trace, judged)
        if gifts is not None:
            return gifts
        if not right.any():
            dead = _always_zero(trace)
            if dead:
                return self.found(
                    Level.NOTE,
                    f"{dead} No recorded answer equals the gold answer.",
                    points_at_cause=True,
                )
            return self.too_little(
                f"none of {len(right)} readable answers equals its gold answer; more steps, or a "
                "run that answers with <answer>, \\boxed{} or ####, are needed"
            )
        if int(judged.gifted.sum()) > BOTH_WAYS * int(missed.sum()) > 0:
            return self.found(
                Level.NOTE,
                f"{missed.sum()} right answers are paid as wrong and {judged.gifted.sum()} others "
                "as right: see H33 group-integrity, or aliases that were not recorded.",
                points_at_cause=True,
            )
        share = cluster_mean(missed[right], judged.prompt[right])
        prompts = len(set(judged.prompt[missed]))
        text = (
            f"{missed.sum()} of {right.sum()} answers that equal the gold answer are paid as wrong "
            f"by {judged.source} ({share.value:.0%} of answers, on {prompts} prompts)."
        )
        level = Level.NOTE if missed.any() else Level.OK
        if level is Level.OK and share.n < FEWEST:
            return self.too_little(f"{text} {FEWEST - share.n} more prompts are needed.")
        if share.low > MISREAD and prompts >= FEWEST:
            level = Level.SUSPECT
        return self.found(
            level,
            text,
            measured=share,
            expected="0",
            severity=share.value / MISREAD,
            evidence=[_example(trace, judged, at) for at in np.flatnonzero(missed)[:3]],
            points_at_cause=True,
        )

    def _opened(self, trace: Trace, seen: Opened) -> Finding:
        """Certain enough where right answers go unpaid, or where the part is about the form."""
        sure = seen.prompts >= FEWEST or seen.about_form
        unpaid = ", ".join(f"`{name}`" for name in seen.unpaid)
        right = (
            f" {len(seen.right)} of these give the gold answer after `</{seen.tag[1:]}`."
            if seen.right
            else ""
        )
        return self.found(
            Level.SUSPECT if sure else Level.NOTE,
            f"Prompts end with `{seen.tag}`, so no completion begins with it, and {unpaid} pays "
            f"nothing for any of {len(trace.rollouts)} rollouts: a pattern that expects "
            f"`{seen.tag}` in the completion never matches.{right}",
            measured=float(len(seen.right)),
            expected="a part that some rollouts earn",
            severity=1 / MISREAD,
            evidence=[Evidence.of(trace, row, _unpaid(trace, row)) for row in seen.right[:3]],
            fix=f"Leave `{seen.tag}` out of the pattern, or put it in front of the completion "
            "before it is matched: the template already wrote it into the prompt.",
            headline=f"Your reward looks for `{seen.tag}` in completions, but it is in the prompt.",
            points_at_cause=True,
        )

    def _unpaid(self, trace: Trace, seen: Unpaid) -> Finding:
        """The same form, always paid for some gold answers and never for others."""
        never, always = (
            ", ".join(repr(gold[:40]) for gold in golds[:SHOWN])
            for golds in (seen.unpaid, seen.paid)
        )
        return self.found(
            Level.SUSPECT,
            f"{seen.answers} right answers on {seen.prompts} prompts, given as {seen.form!r}, all "
            f"earn {seen.wrong_pay:.3g} as wrong ones do. The same form with the gold of other "
            f"prompts always earns more, {seen.right_pay:.3g} or above. Never paid: {never}. "
            f"Always paid: {always}.",
            measured=float(seen.answers),
            expected="0",
            severity=1 / MISREAD,
            evidence=[Evidence.of(trace, row, _unpaid(trace, row)) for row in seen.rows[:3]],
            headline="Your reward function misreads some right answers, and always the same ones.",
            points_at_cause=True,
        )

    def _pieces(self, trace: Trace, seen: Pieces) -> Finding:
        """Broken off inside a word, or empty, and paid like the whole of it."""
        return self.found(
            Level.SUSPECT,
            f"{len(seen.rows)} completions on {seen.prompts} prompts are a piece of the gold "
            f"answer that breaks off inside a word, {seen.empty} of them empty, and "
            f"{seen.source} pays them {seen.pay:.3g} as it pays the whole of it. {seen.wrong} "
            "other wrong answers earn less.",
            measured=float(len(seen.rows)),
            expected="0",
            severity=1 / MISREAD,
            evidence=[Evidence.of(trace, row, _unpaid(trace, row)) for row in seen.rows[:3]],
            fix="Look for the right answer in what was answered, not for what was answered in the "
            "right answer (`gold in answer`), or compare the two.",
            headline=GIFTS,
            points_at_cause=True,
        )

    def _gifts(self, trace: Trace, judged: Judged) -> Finding | None:
        """Wrong numbers that are paid as right, where right ones are not paid as wrong as well."""
        gifted, wrong = judged.surely_gifted, ~judged.right
        prompts = len(set(judged.prompt[gifted]))
        if prompts < FEWEST or judged.missed.any():
            return None
        share = cluster_mean(gifted[wrong], judged.prompt[wrong])
        if share.low <= MISREAD:
            return None
        return self.found(
            Level.SUSPECT,
            f"{gifted.sum()} of {wrong.sum()} answers that are not the gold answer are other "
            f"numbers and paid as right by {judged.source} ({share.value:.0%}, on {prompts} "
            "prompts).",
            measured=share,
            expected="0",
            severity=share.value / MISREAD,
            evidence=[_example(trace, judged, at) for at in np.flatnonzero(gifted)[:3]],
            headline=SAME_FOR_ALL if gifted.sum() > NEARLY_ALL * wrong.sum() else GIFTS,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Do scripted episodes earn what they should?"""
        oracle = subject.oracle()
        if oracle.problems == 0:
            return self.too_little("no problem could be run")
        if len(np.unique(np.round(oracle.gold_R, 3))) > SCATTERED:
            return self.found(
                Level.NOTE,
                f"Gold answers earn from {oracle.gold_R.min():.2f} to {oracle.gold_R.max():.2f}: "
                "the reward does not depend on the answer alone, see H05 reward-signal.",
                points_at_cause=True,
            )
        short = [case for case in oracle.below_maximum if case.reward < 1 - SHORT]
        above = [case for case in oracle.not_below_gold if case.reward > case.gold_reward + SHORT]
        if short or above:
            return self._misread(oracle, short, above)
        ties = len(oracle.not_below_gold)
        text = f"Gold earns the maximum on all {oracle.problems} problems"
        if ties > SATURATED * oracle.played:
            return self.found(
                Level.NOTE,
                f"{text}, and so do {ties} of {oracle.played} wrong answers: the reward asks for "
                "too little, see H32 zero-variance-groups.",
                points_at_cause=True,
            )
        if ties:
            return self.found(
                Level.SUSPECT,
                f"{text}, but {ties} of {oracle.played} wrong answers earn as much.",
                measured=ties / oracle.played,
                expected="0",
                evidence=_cases(oracle.not_below_gold),
            )
        sound = self.found(
            Level.OK,
            f"{text}, and {oracle.played} wrong answers earn less.",
            looked_at=oracle.problems,
        )
        return unless_batch_alarms(sound, self.sign, subject.trace)

    def replay(self, trace: Trace) -> Replay:
        """The advantages with right answers paid as such; the answers are read here, not there."""
        judged, rows = judge(trace), looked_at(trace)
        reward = trace.rollouts["reward"]
        mended = reward.copy()
        mended[judged.row[judged.missed]] = _usual_pay(judged, reward)
        found = agreement(
            trained(trace)[rows], advantages(trace, mended)[rows], trace.groups().index[rows]
        )
        right = len(set(judged.prompt[judged.right]))
        told = (
            f"{len(judged.row)} of {len(rows)} answers could be read, those of {right} prompts are "
            f"right, {judged.missed.sum()} of them paid as wrong."
        )
        enough = len(judged.row) >= READ * len(rows) and right >= FEWEST
        return decide(found, "With right answers paid as such", told=told, enough=enough)

    def _misread(
        self, oracle: "Oracle", short: "list[OracleCase]", above: "list[OracleCase]"
    ) -> Finding:
        return self.found(
            Level.FAULT,
            f"Gold earns less than the maximum on {len(short)} of {oracle.problems} problems, and "
            f"{len(above)} of {oracle.played} wrong answers earn more than gold.",
            measured=len(short) / oracle.problems,
            expected="0",
            evidence=_cases((*short, *above)),
        )


def _unpaid(trace: Trace, row: int) -> str:
    said, gold = (str(trace.rollouts[name][row]) for name in ("completion", "gold"))
    return f"ends with {said[-40:]!r}, gold is {gold[:40]!r}, reward " + (
        f"{trace.rollouts['reward'][row]:.3g}"
    )


def _usual_pay(judged: Judged, reward: np.ndarray) -> float:
    """What a right answer earns where it is paid as such; the highest reward where none is."""
    paid = judged.right & ~judged.missed
    return float(np.median(reward[judged.row[paid]]) if paid.any() else np.nanmax(reward))


def _always_zero(trace: Trace) -> str | None:
    """A part that never pays, over enough prompts to be told."""
    if "prompt_id" not in trace.rollouts or len(set(trace.rollouts["prompt_id"])) < CONSTANT:
        return None
    dead = [name for name, part in sorted(trace.parts().items()) if np.nanmax(part) <= 0]
    return f"{', '.join(f'`{name}`' for name in dead)} is 0 on every rollout." if dead else None


def _example(trace: Trace, judged: Judged, at: int) -> Evidence:
    row = judged.row[at]
    return Evidence.of(
        trace,
        row,
        f"answers {judged.answer[at][:60]!r}, gold is {judged.gold[at][:60]!r}, "
        f"{judged.source} pays {judged.paid[at]:g}, reward {trace.rollouts['reward'][row]:.3g}",
    )


def _cases(cases: "tuple[OracleCase, ...] | list[OracleCase]") -> list[Evidence]:
    return [
        Evidence(
            text=f"problem {case.problem}, {case.script}: pays {case.reward:.3g}, "
            f"gold {case.gold_reward:.3g}"
        )
        for case in cases[:3]
    ]
