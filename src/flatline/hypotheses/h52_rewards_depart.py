"""A row does not get the reward that its own completion earned.

## What goes wrong
Rewards arrive at another row, a weight is ignored, a function pays a row for what its neighbours
did, a row that no function judged counts as 0, the gold next to a question belongs to another
question, or a prompt already holds the answer. The group then ranks its completions by something
that they did not do.

## Sign
Along a recorded run:

- Exact: each reward is the sum of its parts with the weights asked for, and a row for which every
  function returned None has an advantage of 0.
- Suspected: the same words for the same prompt are judged right at one step and wrong at another,
  for most such words, on three prompts or more.
- Suspected: answers that a policy is sure of, different ones to different questions, equal the gold
  of their own row no more often than that of any other row (24 prompts or more).
- Suspected: prompts hold their own question with the right answer behind it.

## Probe
Each reward function is observed: it must be given the row's own columns, what it pays must arrive
at that row, and the weighted sum must have the weights asked for.

A fast function is called again:

- unchanged: a reward that changes once and then stays was remembered;
- with the rows in reverse order;
- with half of the groups (suspected);
- with the gold of the rows before and after: answers match a neighbour's gold and not their own
  (chance below 0.001);
- with gold itself as the answer of 64 rows: suspected if the gold of most earns the full pay and
  that of three others never does, in any format.

Where no column is called an answer, the one whose own text earns the most, and the text of another
row less, holds right answers.

Then only the answer is replaced, in completions of the batch and in the usual formats, by the gold
of 16 rows and by a wrong answer of the same length. Suspected if

- the right answer earns less on the whole and nowhere more;
- it counts in a single message and never as the last of several;
- a piece of it, cut off inside, earns all that the whole earns, and less beside a wrong one;
- an empty completion or "I do not know." earns at least three quarters of what the right answer
  earns above a wrong one;
- completions give the gold of their own row, and functions that ask for it would pay as much for
  another answer.

A function that pays nobody is called with completions that keep the special tokens which decoding
left out. An environment that has played an episode and was reset is paid beside a new one, with
nothing done in either.

Suspected without calling any function: a reward model with several labels, of which TRL pays the
first; prompts that hold their own question with the right answer after it; and one prompt with
several right answers, in half of the rows, if no tool or environment takes part.

## Experiment
None: what departs is code, not a setting. Fix it, and compare matched seeds before and after.

## Fix
Compare the first rows by hand: completion, gold, what each function paid, what arrived.

## Not to be confused with
H05 reward-signal and H39 reward-parser: the function judges its own row badly. H33 group-integrity:
rewards changed places inside the batch, as the gold shows. H68 verifier-failures: a judge fails and
returns 0, or one of several functions returns None and the sum lacks its part; here the trainer
turns a row that nobody judged into 0. H48 logs-lie: only the log is wrong; if rewards depart, their
log follows.

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
