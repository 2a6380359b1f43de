"""A row does not get what its own completion earned.

## What goes wrong
Rewards arrive at another row, a weight is ignored, a function pays a row by what its neighbours
did, a row that no function judged counts as one that earned 0, the gold beside a question is that
of another question, or a prompt already holds the answer. The group then ranks its completions by
something that they did not do.

## Sign
Along a recorded run: each reward is the sum of its parts with the weights asked for, exactly; a row
for which every function returned None has an advantage of 0; and the same words for the same prompt
are told right, or wrong, at every step alike (suspected where most of them, on three prompts or
more, are not). Suspected as well: answers that a policy is sure of, other ones to other questions,
that equal the gold of their own row no more often than that of any other row (24 prompts or more).
And prompts that hold their own question with the right answer behind it.

## Probe
Each reward function is heard: what it was given must be the row's own columns, what it paid must
arrive at that row, and the weighted sum must have the weights asked for. A fast function is then
asked again: twice (what changes once and stays is remembered), with the rows turned around, with
half of the groups (suspected), with the gold of the rows before and after (answers that match a
neighbour's gold and not their own; chance below 0.001), and with gold itself as the answer of 64
rows: where the gold of most earns the full pay and that of three others never does, whatever the
marking, no answer can earn it (suspected). Last, nothing but the answer is exchanged, in
completions of the batch and in the usual markings, for the gold of 16 rows and for a wrong one as
long: suspected where the right one earns less on the whole and nowhere more, where it counts in a
single message and never as the last of several, where an empty completion or "I do not know." earns
at least three quarters of what the right one earns above a wrong one, and where completions give
the gold of their own row and functions that ask for it would pay as much for another answer. Also
suspected, without asking anybody: a reward model with several labels, of which TRL pays the first;
prompts that hold their own question with the right answer behind it; and one prompt with several
right answers, in half of the rows, where nobody plays on. A function that pays nobody is asked
about completions with the special tokens that decoding left out, and an environment that has played
an episode and was reset is paid beside a new one, with nothing done in either.

## Experiment
None: what departs is code and not a setting. Mend it, and compare matched seeds before and after.

## Fix
Compare the first rows by hand: completion, gold, what each function paid, what arrived.

## Not to be confused with
H05 reward-signal and H39 reward-parser: the function judges its own row badly. H33 group-integrity:
rewards that changed places inside the batch, with the gold to show it. H68 verifier-failures: the
judge fails and says 0, or one of several functions says nothing and the sum has no part of it; here
the trainer makes 0 of a row that nobody judged. H48 logs-lie: only the log is wrong; a log of
rewards that depart follows from them.

## References
`docs/specification.md`, rewards.
"""

from flatline.hypotheses.departure import DepartureAlong


class RewardsDepart(DepartureAlong):
    id = "H52"
    name = "rewards-depart"
    headline = "Your completions get rewards they did not earn."
    stage = "rewards"
    named_by = ("H01", "H05", "H32", "H33", "H36", "H37", "H38", "H39", "H40", "H68")
    meaning = "Completions are compared by rewards that they did not earn."
    fix = "Check that each reward function sees its own row, and that weights are those asked for."
