"""Processes that should train one model together do not: they draw alike, gather wrongly or drift.

## What goes wrong
Several processes are one trainer only if each draws different prompts, if what they gather is split
up again in the same order, if the loss is the mean over all of them, and if all step the same
weights by the same gradient.

- A sampler with the same seed everywhere and no split makes all of them do the same work: the batch
  has half its size.
- A gather in another order, or groups that are dealt out row by row, compares answers with the
  answers to other questions.
- A loss multiplied by the number of processes is a learning rate that grows with the machine.
- A model called without the wrapper that averages gradients trains as many models as there are
  processes, and saves one.

## Sign
Two processes that draw the same prompts in the same order, over at least three groups with at least
two different prompts. Healthy: never, unless one prompt is in the data many times.

## Probe
One real step of all processes: prompts of three generations of each; groups of `num_generations`
neighbours over all processes; what the reward functions paid, in the order of the processes,
against what arrives in each of them; advantages against those of all rewards; the bits of all
weights; and the gradient that each process holds against the same passes done by one process alone
(cosine and length to the rounding of the precision).

## Experiment
None: what is wrong is code. Fix it, and compare matched seeds on as many processes.

## Fix
Let accelerate split the data (`accelerator.prepare(dataloader)`), gather with `accelerator.gather`
and cut out `process_index * rows` to `(process_index + 1) * rows`, divide a loss by what was summed
over all processes exactly once, and call the model that `accelerator.prepare` returned.

## Not to be confused with
H33 group-integrity: groups are mixed in one process already. H28 loss-normalisation: the scale of
the loss depends on passes, not on processes. H24 learning-rate: too high on any number of
processes.

## References
TRL issues 2803 and 3098 (prompts of a group differ over processes); `docs/a-trl-script.md`.
"""

import math
from itertools import combinations
from typing import TYPE_CHECKING

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logs import setting
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.step_records import Between
    from flatline.live.subject import Subject

Groups = dict[tuple[int, int], str]
"""Step and number of a group -> its prompt."""
Drawn = dict[int, Groups]
"""By process."""

FEWEST = 3
"""Groups that two processes must have in common to be called alike."""
ADVANTAGE = 1e-3
"""Of an advantage, relative to 1 plus its size: float32 and a small number in the division."""
ONE = "Does not apply: one process trains."


class ProcessesApart(Hypothesis):
    id = "H60"
    name = "processes-apart"
    headline = "Your processes do not train one model together."
    meaning = "The processes do not train one model on one batch together."
    fix = (
        "Let accelerate split the data, gather in the order of the processes, scale the loss once, "
        "and call the model that `accelerator.prepare` returned."
    )
    explains = ("H04", "H24", "H30", "H33", "H52", "H53", "H57")

    def sign(self, trace: Trace) -> Finding:
        """Do two processes draw the same prompts in the same order?"""
        names = ("rank", "step", "group", "prompt_id")
        rank_R, step_R, group_R, prompt_R = (trace.rollouts[name] for name in names)
        drawn: Drawn = {}
        for rank, step, group, prompt in zip(rank_R, step_R, group_R, prompt_R, strict=True):
            drawn.setdefault(int(rank), {})[int(step), int(group)] = str(prompt)
        if len(drawn) < 2:
            processes = setting(trace, "world_size")
            if processes == 1:
                return self.found(Level.OK, ONE, excluded_by="world_size")
            return self.too_little(f"the rollouts of {len(drawn)} of {processes} processes")
        return self._judge_prompts(drawn) or self._other_prompts(drawn)

    def probe(self, subject: "Subject") -> Finding:
        """Is a step of all processes the step that one would take?"""
        found = subject.between()
        if found is None:
            return self.found(Level.OK, ONE, excluded_by="world_size")
        return (
            self._judge_weights(found)
            or self._judge_groups(found)
            or self._judge_prompts(_drawn(found))
            or self._judge_gathering(found)
            or self._judge_gradients(found)
            or self._healthy(found)
        )

    def _judge_prompts(self, drawn: Drawn) -> Finding | None:
        for (a, of_a), (b, of_b) in combinations(sorted(drawn.items()), 2):
            first, second = _apart(of_a, of_b), _apart(of_b, of_a)
            if first == second and len(first) >= FEWEST and len(set(first)) > 1:
                return self.found(
                    Level.FAULT,
                    f"Processes {a} and {b} draw the same {len(first)} prompts in the same order: "
                    "the batch is smaller than it looks.",
                    measured=len(first),
                    expected="other prompts in each process",
                    evidence=[Evidence(text=f"prompts {', '.join(first[:4])} in both")],
                )
        return None

    def _judge_weights(self, found: "Between") -> Finding | None:
        if not found.differing:
            return None
        return self.found(
            Level.FAULT,
            f"{len(found.differing)} weights are not the same in all {found.processes} processes: "
            f"each trains a different model.",
            measured=len(found.differing),
            expected="the same bits in every process",
            evidence=[Evidence(text=f"`{name}` differs") for name in found.differing[:3]],
        )

    def _judge_groups(self, found: "Between") -> Finding | None:
        if not found.broken:
            return None
        return self.found(
            Level.FAULT,
            f"{len(found.broken)} groups of {found.group} neighbours over all processes are not "
            "one prompt: advantages compare answers to different questions.",
            measured=len(found.broken),
            expected=f"one prompt {found.group} times",
        )

    def _judge_gathering(self, found: "Between") -> Finding | None:
        if found.misplaced:
            return self.found(
                Level.FAULT,
                f"{found.misplaced} rewards do not arrive at the rows they were paid for: what the "
                "processes gather is not in their order.",
                measured=found.misplaced,
                expected="the rewards of process 0, then those of process 1, ...",
            )
        if found.advantage_off is not None and found.advantage_off > ADVANTAGE:
            return self.found(
                Level.FAULT,
                "An advantage is not that of its reward among the rewards of all processes; the "
                f"largest difference is {found.advantage_off:.2g}.",
                measured=found.advantage_off,
                expected="each process goes on with its own rows",
            )
        return None

    def _judge_gradients(self, found: "Between") -> Finding | None:
        if found.lengths is None or found.cosines is None:
            return None
        apart = [
            at
            for at, (length, alike) in enumerate(zip(found.lengths, found.cosines, strict=True))
            if abs(length - 1) > found.length_limit or 1 - alike > found.cosine_limit  # not NaN
        ]
        if not apart:
            return None
        length, alike = found.lengths[apart[0]], found.cosines[apart[0]]
        return self.found(
            Level.FAULT,
            f"The gradient of process {apart[0]} is {length:.3g} times as long as that of the same "
            f"passes in one process (cosine {alike:.3g}).{_why(found, length, alike)}",
            measured=length,
            expected="length 1, cosine 1",
        )

    def _healthy(self, found: "Between") -> Finding:
        if found.misplaced is None or found.advantage_off is None:
            what = "Could not be tested: only rewards of plain functions can be followed."
            return self.found(Level.UNKNOWN, what)
        if not found.lengths or not math.isfinite(sum(found.lengths)):
            return self.found(
                Level.UNKNOWN,
                f"{found.processes} processes draw different prompts and gather in order; "
                "whether they step together is unknown: no gradient could be read.",
                needs="Check it at the start of training, where rewards differ, without DeepSpeed",
            )
        return self.found(
            Level.OK,
            f"{found.processes} processes draw different prompts, gather in order and hold the "
            "gradient of a single process, to "
            f"{max(abs(1 - one) for one in found.lengths):.1g} of its length.",
            looked_at=found.processes,
        )

    def _other_prompts(self, drawn: Drawn) -> Finding:
        fewest = min(len(_apart(a, b)) for a, b in combinations(drawn.values(), 2))
        if 0 < fewest < FEWEST:
            what = f"Not enough data: {FEWEST} groups of each process are needed."
            return self.found(Level.UNKNOWN, what)
        return self.found(
            Level.OK, f"{len(drawn)} processes do not draw the same prompts.", looked_at=fewest
        )


def _drawn(found: "Between") -> Drawn:
    """Groups are counted over all processes."""
    drawn: Drawn = {rank: {} for rank in range(found.processes)}
    for rank, generations in enumerate(found.prompts):
        for at, names in enumerate(generations):
            for row, name in enumerate(names):
                drawn[rank][at, (rank * len(names) + row) // found.group] = name
    return drawn


def _apart(own: Groups, other: Groups) -> list[str]:
    """Prompts of one process's groups, in order, without groups that are split over both."""
    return [name for key, name in sorted(own.items()) if key not in other]


def _why(found: "Between", length: float, alike: float) -> str:
    if 1 - alike > found.cosine_limit:
        return " It is not the mean over the processes."
    for times, word in ((found.processes, "multiplied"), (1 / found.processes, "divided")):
        if abs(length / times - 1) <= found.length_limit:
            return f" It is {word} by the number of processes."
    return ""
