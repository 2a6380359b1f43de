"""Groups are not what GRPO takes them for: prompts are mixed, or rewards belong to other rollouts.

## What goes wrong
GRPO compares rewards inside runs of `num_generations` neighbours and trusts that these are samples
of one prompt. A shuffle, a gather in another order, asynchronous results taken as they finish, or
batch sizes derived before they were changed break that silently: advantages then compare prompts
instead of answers, or are paired with completions that did not earn them.

## Sign
Exact:

- rows whose prompt and completion are, id by id, those sampled for another rollout of the step,
  while advantages follow the rewards of their own place;
- a group with two prompts;
- one prompt for all rows of the data, although their answers differ and a completion has nothing
  else to go by;
- groups of one step that differ in size, or, in a run that was not resumed, do not have
  `num_generations` rollouts (unless some samples are left out of training on purpose, as in GFPO);
- answers that equal the gold answer are paid as wrong while others are paid as right, so often that
  pay and answer are unrelated: what one rollout earned went to another.

Statistical:

- advantages that do not follow the rewards of their own group (correlation certainly below one
  half; healthy: 1);
- prompts that appear several times in a step;
- half as many prompts as blind draws would show, if every row of the data is a different prompt;
  unknown if problems share their prompt (one text for all games of a kind, or for all images) and
  have no id.

## Probe
Reads from the trainer's sampler which rows it will visit: every run of `num_generations` must be
one row, a step must not repeat a prompt, and an epoch must visit nearly all of the data. Then the
sign is read on one sampled batch. Last come rows beyond the first batch. Does the order follow the
seed, or the file if nothing is to be shuffled? Does a generation have the rows that its passes
need? Is the next one sampled and dealt out, each completion as often as asked, and shuffled over
its passes if TRL does so? Does it have prompts of its own, and is no prompt skipped?

## Experiment
A run with the planted fault against the same without it, matched seeds. Mixed groups in your own
code need none: the invariant is broken or not. For repeated prompts: the config built once, against
the config changed after it was built.

## Fix
Carry group ids with every rollout and assert them where advantages are computed. Give batch sizes
to the constructor of `GRPOConfig`, and never change them afterwards.

## Not to be confused with
H39 reward-parser: right answers are paid as wrong, but no wrong one as right. H05 reward-signal:
rewards are noisy, but belong to their rollouts. H10 template-drift and H11 retokenisation: what is
trained was never sampled; here all of it was, in another place. A low share of variance between
prompts proves nothing: prompts of one difficulty show it in a healthy run.

## References
TRL issues 2803 and 3098 (prompts of a group differ over processes); rllm issue 605 (groups of one);
d1 issue 19; verifiers 0.1.x derives `generation_batch_size` before a script's changes: doubling the
accumulation doubled every prompt in a step and left half of the data out (the seeds' setup).
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import FlatlineError, NotRecorded
from flatline.hypotheses.answers import Judged, judge
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.departure import CODES, LOOK_ALIKES, with_lines
from flatline.hypotheses.exchanged_rows import Exchanged, exchanged_rows
from flatline.hypotheses.groups import (
    prompts_of,
    standardised,
    unless_batch_alarms,
    within_correlation,
)
from flatline.hypotheses.logs import imported
from flatline.hypotheses.weights import kl_in_reward
from flatline.stats import cluster_mean
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

CONTRADICTED = 0.1
"""Share of right answers that are paid as wrong, and of prompts behind wrong ones paid as right,
that only exchanged rewards show. Healthy: the first is 0."""
UNRELATED = 0.3
"""Correlation of right answers and pay below which rewards changed places. Healthy: 1 in
one lab run. A guess: aliases that were not recorded, or a reward that insists on a format, should
leave it well above."""
FEWEST = 3
"""Prompts that must show it on either side."""
FOLLOWS = 0.5
"""Correlation of advantages with rewards inside a group. Healthy: 1; normalising each part by
itself (GDPO) may lower it. False alarms: see docs/hypotheses.md."""
REPEATED = 0.1
"""Share of repeated prompts in a step beyond what drawing with replacement gives. Healthy: 0."""
NAMED = 0.5
"""Share of the prompts that a run must have seen by now, if prompts are problems, below which they
are not. Healthy: 1. A guess: who draws from a small part of the data has less."""
ENOUGH_DRAWS = 16
"""Groups of which blind draws hardly ever show half of what they should: below once in 10,000."""
OF_ANOTHER_ORDER = (
    *("H06", "H10", "H11", "H12", "H17", "H19", "H20", "H21", "H22", "H34", "H36", "H61", "H63"),
    *("H68", *CODES.values()),
)
"""What else fires where rows are compared with what was sampled and paid for others."""
VISITED = 0.9
"""Share of the data that an epoch visits. Healthy: all but an incomplete last batch."""


class GroupIntegrity(Hypothesis):
    id = "H33"
    name = "group-integrity"
    headline = "Your groups are mixed up: advantages go to the wrong completions."
    explains = ("H05", "H39", "H01", "H24")
    meaning = "Advantages are given to completions that did not earn them, so they teach nothing."
    fix = "Carry a group id with every rollout and assert it where advantages are computed."
    mechanism = (
        "Groups are mixed, not whole, repeated or paid for what others did; in the other arm each "
        "is one prompt with its own rewards."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is every group one prompt, whole, and paid for what it did?"""
        return (
            self._reordered(trace)
            or self._mixed(trace)
            or self._one_prompt(trace)
            or self._sizes(trace)
            or self._exchanged(trace)
            or self._advantages(trace)
            or self._narrow(trace)
            or self._unnamed(trace)
            or self._repeated(trace)
            or self._whole(trace)
        )

    def probe(self, subject: "Subject") -> Finding:
        """Which rows will the trainer visit?"""
        found = self._visited(subject)
        return with_lines(found, "rows", subject) if found.level in ALARMS else found

    def _visited(self, subject: "Subject") -> Finding:
        order = subject.data_order()
        if not order.groups_whole:
            return self._fault("The sampler does not give `num_generations` rows of one prompt.")
        if not order.dataset_size or not np.isfinite(order.visited_share):
            return self.too_little("the training data has no rows that could be counted")
        extra = int((order.groups_per_step - order.unique_per_step).sum())
        if extra and order.dataset_size >= order.groups_per_step.max():
            return self._fault(
                f"{extra} of {order.groups_per_step.sum()} groups of the first "
                f"{len(order.groups_per_step)} steps repeat a prompt of their own step.",
                measured=extra / float(order.groups_per_step.sum()),
            )
        text = (
            f"An epoch visits {order.visited_share:.0%} of {order.dataset_size} prompts; "
            "groups are whole and no step repeats a prompt."
        )
        missed = order.epoch_complete and order.visited_share < VISITED
        if missed and order.dataset_size >= order.groups_per_step.max() / (1 - VISITED):
            return self.found(
                Level.SUSPECT, text, measured=order.visited_share, expected=f"above {VISITED:.0%}"
            )
        whole = self.found(
            Level.OK,
            text,
            measured=order.visited_share,
            expected="nearly all",
            looked_at=order.dataset_size,
        )
        seen = unless_batch_alarms(whole, self.sign, subject.trace)
        return seen if seen.level in ALARMS else self._specified(subject) or seen

    def _specified(self, subject: "Subject") -> Finding | None:
        """Rows of the next generation and the order of the data, beside those asked for."""
        with suppress(FlatlineError):  # where there is no specification, or no time for it
            rows = subject.departures()["rows"]
            if rows.departs:
                alarm = self._fault(
                    rows.text, evidence=[Evidence.placed(example) for example in rows.examples]
                )
                return replace(alarm, explains=(*alarm.explains, *LOOK_ALIKES, CODES["gradient"]))
            if rows.added:
                return self.found(Level.NOTE, rows.text)
        return None

    def _reordered(self, trace: Trace) -> Finding | None:
        """Ids that changed places while advantages stayed."""
        found = exchanged_rows(trace)
        if found is None:
            return None
        alarm = self.found(
            Level.FAULT,
            f"{len(found.row)} of {found.looked_at} rollouts are trained with the prompt and the "
            "completion of another rollout of their step, id by id, and with their own advantage: "
            "rows were put in another order, and advantages were not.",
            measured=len(found.row) / found.looked_at,
            expected="0",
            evidence=[_in_place_of(trace, *pair) for pair in _worst(trace, found)],
            severity=len(found.row) / found.looked_at / CONTRADICTED,
            headline="Your advantages go to other completions: rows were put in another order.",
            fix="Put every tensor of the batch in the new order, `advantages` and log-probs too.",
            proven=True,
        )
        return replace(alarm, explains=(*self.explains, *OF_ANOTHER_ORDER))

    def _mixed(self, trace: Trace) -> Finding | None:
        if "prompt_id" not in trace.rollouts:
            return None
        kinds = _prompts_in_groups(trace)
        mixed = np.flatnonzero(kinds > 1)
        if not len(mixed):
            return None
        return self._fault(
            f"{len(mixed)} of {len(kinds)} groups hold rollouts of several prompts.",
            measured=float(len(mixed) / len(kinds)),
            evidence=[
                Evidence(
                    text=f"one group has {kinds[at]} prompts: {_some(trace, int(at))}",
                    step=int(trace.groups().step[at]),
                )
                for at in mixed[:3]
            ],
        )

    def _one_prompt(self, trace: Trace) -> Finding | None:
        """All rows have one prompt, and answers that differ: nothing says which is asked for."""
        rows = trace.settings.get("dataset_size")
        if trace.settings.get("prompt_texts") != 1 or not rows or "gold" not in trace.rollouts:
            return None
        golds = {str(gold) for gold in trace.rollouts["gold"] if gold is not None}
        if len(golds) < FEWEST:
            return None
        return self.found(
            Level.FAULT,
            f"All {rows} rows of the data have the same prompt, and the {trace.groups().n} groups "
            f"that were sampled have {len(golds)} different answers.",
            measured=1 / rows,
            expected="a prompt of its own for every row",
            headline="All rows of your data have the same prompt.",
            fix="Look at how the prompts are made: a variable that is read too late, or a constant "
            "where a row's own question should stand.",
            proven=True,
        )

    def _sizes(self, trace: Trace) -> Finding | None:
        """The last step may be incomplete, and an imported log may be a sample."""
        wanted = trace.settings.get("num_generations")
        if not wanted or wanted < 2 or imported(trace) or "group" not in trace.rollouts:
            return None
        if trace.rows_left_out:  # on purpose: `_advantages` says whether those that stay fit
            return None
        groups = trace.groups()
        whole = groups.step < groups.step.max()
        size, step = groups.size[whole], groups.step[whole]
        judged = _differ(size, step) if trace.resumed else np.ones(len(size), dtype=bool)
        wrong = size[judged & (size != wanted)]
        if not len(wrong):
            return None
        return self._fault(
            f"{len(wrong)} of {len(size)} groups have another size than {wanted}, "
            f"such as {wrong[0]}.",
            measured=float(len(wrong) / len(size)),
        )

    def _exchanged(self, trace: Trace) -> Finding | None:
        """Right answers paid as wrong, and wrong ones as right: rewards changed places."""
        try:
            judged = judge(trace)
        except NotRecorded:
            return None
        if not judged.right.any() or judged.right.all():
            return None
        missed, gifted = judged.missed, judged.gifted
        least = min(len(set(judged.prompt[missed])), len(set(judged.prompt[gifted])))
        share = cluster_mean(missed[judged.right], judged.prompt[judged.right])
        given = float(gifted[~judged.right].mean())
        if least < FEWEST or share.low < CONTRADICTED or given < CONTRADICTED:
            return None
        if _related(judged) > UNRELATED:
            return None
        return self._fault(
            f"{share.value:.0%} of the answers that equal the gold answer are paid as wrong by "
            f"{judged.source}, and {given:.0%} of the others as right: rewards changed places.",
            measured=share.value,
            evidence=[_example(trace, judged, at) for at in np.flatnonzero(missed | gifted)[:3]],
        )

    def _advantages(self, trace: Trace) -> Finding | None:
        own = kl_in_reward(trace.settings) or trace.run.get("advantages_of_tokens")
        if "advantage" not in trace.rollouts or own:
            return None
        reward, advantage = trace.rollouts["reward"], trace.rollouts["advantage"]
        index = trace.groups().index
        # In the units of its own group: advantages may be scaled by its spread, or not at all.
        follows = within_correlation(
            standardised(reward, index), standardised(advantage, index), index
        )
        if not follows.high < FOLLOWS:
            return None
        if trace.run.get("source") == "watch" and follows.high < -FOLLOWS:
            return None  # nothing is mixed up: the loss has the wrong sign, which is H53's or H55's
        return self.found(
            Level.SUSPECT,
            f"Advantages hardly follow the rewards of their own group: correlation {follows}.",
            measured=follows,
            expected="1",
        )

    def _narrow(self, trace: Trace) -> Finding | None:
        """Far fewer prompts than even a blind draw from the data would have shown."""
        data = trace.settings.get("dataset_size")
        if not data or "prompt_id" not in trace.rollouts:
            return None
        if trace.settings.get("distinct_prompts") != data:  # rows share their prompts
            return None
        prompt = prompts_of(trace)
        drawn, seen = len(prompt), len(set(prompt.tolist()))
        blind = data * (1 - (1 - 1 / data) ** drawn)
        if drawn < ENOUGH_DRAWS or seen > NAMED * blind:
            return None
        return self.found(
            Level.SUSPECT,
            f"{drawn} groups were drawn from {data} rows and show {seen} prompts; blind draws "
            f"would show about {blind:.0f}, and an epoch shows each row once.",
            measured=seen / blind,
            expected="1 or more",
            severity=NAMED * blind / seen,
            fix="Look at the sampler, and for a subset of the data left in from debugging.",
        )

    def _unnamed(self, trace: Trace) -> Finding | None:
        """Without ids in the data a prompt is known by its text, which many problems may share."""
        data = trace.settings.get("dataset_size")
        if not data or "prompt_id" not in trace.rollouts:
            return None
        step, prompt = trace.groups().step, prompts_of(trace)
        seen = len(set(prompt.tolist()))
        # A prompt that is drawn twice in a step is no new one; in another step it should be.
        drawn = min(data, len(set(zip(step.tolist(), prompt.tolist(), strict=True))))
        if len(set(step.tolist())) < 2 or seen > NAMED * drawn:
            return None
        return self.too_little(
            f"{len(step)} groups show {seen} prompts, of data that has {data} rows: "
            "prompts are no names of problems here. A column `id` in the data is needed."
        )

    def _repeated(self, trace: Trace) -> Finding | None:
        if "prompt_id" not in trace.rollouts or "group" not in trace.rollouts:
            return None
        step, prompt = trace.groups().step, prompts_of(trace)
        data = trace.settings.get("dataset_size") or len(set(prompt))
        seen: set[tuple[int, str]] = set()
        repeat = np.zeros(len(step))
        for at, key in enumerate(zip(step.tolist(), prompt.tolist(), strict=True)):
            repeat[at] = key in seen
            seen.add(key)
        share = cluster_mean(repeat, step)
        groups = len(step) / len(set(step.tolist()))
        drawn = 1 - data * (1 - (1 - 1 / data) ** groups) / groups
        if groups > data or share.low < drawn + REPEATED:
            return None
        return self.found(
            Level.SUSPECT,
            f"{share.value:.0%} of the groups repeat a prompt of their own step, and the data has "
            f"at least {data}: batch sizes do not fit together.",
            measured=share,
            expected="0",
            severity=share.value / REPEATED,
            fix="Give all batch sizes to the constructor of GRPOConfig; change none afterwards.",
        )

    def _whole(self, trace: Trace) -> Finding:
        groups = trace.groups()
        if groups.size.max() < 2:
            return self.too_little("every group has one rollout; two or more are compared.")
        named = np.array([name is not None for name in groups.prompt_id])
        several = int((named & (groups.size > 1)).sum())
        paid = [name for name in ("advantage", "gold") if name in trace.rollouts]
        belongs = "What was recorded of advantages and answers belongs to its rollouts."
        return self.found(
            Level.OK,
            f"All {several} groups are one prompt each. "
            f"{belongs if paid else 'Advantages and right answers were not recorded.'}",
            looked_at=several,
        )

    def _fault(
        self, text: str, *, measured: float = 1.0, evidence: list[Evidence] | None = None
    ) -> Finding:
        return self.found(
            Level.FAULT, text, measured=measured, expected="0", evidence=evidence or []
        )


def _worst(trace: Trace, found: Exchanged, n: int = 3) -> list[tuple[int, int]]:
    """Pairs of a place and whose ids are in it, those first that were paid most differently."""
    reward = trace.rollouts["reward"]
    apart = np.nan_to_num(np.abs(reward[found.row] - reward[found.source]))
    first = np.argsort(-apart, kind="stable")[:n]
    return list(zip(found.row[first].tolist(), found.source[first].tolist(), strict=True))


def _in_place_of(trace: Trace, row: int, source: int) -> Evidence:
    rollouts = trace.rollouts
    said = str(rollouts["completion"][row]) if "completion" in rollouts else "its completion"
    earned = [f"which earned {rollouts['reward'][at]:.3g}" for at in (source, row)]
    return Evidence.of(
        trace,
        row,
        f"{said[:60]!r} of rollout {int(rollouts['rollout'][source])}, {earned[0]}, is "
        f"trained with the advantage {rollouts['advantage'][row]:+.3g} of this one, {earned[1]}",
    )


def _differ(size: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Groups of a step whose groups are not of one size."""
    kinds = np.unique(np.column_stack([step, size]), axis=0)[:, 0]
    steps, times = np.unique(kinds, return_counts=True)
    return np.isin(step, steps[times > 1])


def _related(judged: Judged) -> float:
    known = np.isfinite(judged.paid)
    right, paid = judged.right[known].astype(float), judged.paid[known]
    return float(np.corrcoef(right, paid)[0, 1]) if np.ptp(right) and np.ptp(paid) else 0.0


def _prompts_in_groups(trace: Trace) -> np.ndarray:
    """How many prompts each group has; one that was not recorded is none."""
    names, index = trace.rollouts.coded("prompt_id")
    known = np.array([name is not None for name in names])[index]
    pairs = np.unique(trace.groups().index[known] * len(names) + index[known])
    return np.bincount(pairs // len(names), minlength=trace.groups().n)


def _some(trace: Trace, group: int) -> str:
    names = trace.rollouts["prompt_id"][trace.groups().index == group]
    return ", ".join(sorted({str(name) for name in names})[:3])


def _example(trace: Trace, judged: Judged, at: int) -> Evidence:
    row = judged.row[at]
    verdict = "right" if judged.right[at] else "another answer"
    return Evidence.of(
        trace,
        row,
        f"answers {judged.answer[at][:60]!r}, gold is {judged.gold[at][:60]!r} ({verdict}); "
        f"{judged.source} pays {judged.paid[at]:g}, reward {trace.rollouts['reward'][row]:.3g}",
    )
