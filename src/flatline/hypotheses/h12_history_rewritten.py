"""The chat template rewrites earlier turns, so what is trained is a conversation nobody had.

## What goes wrong
Templates of thinking models delete the thinking of all turns but the last. Turn by turn the sampler
sees one history; rendered once more at the end, the trainer sees another, in which words that the
model wrote are gone. Turns that were glued together are trained after a context that never existed.

## Sign
Where both are recorded, sampled and trained ids: a trained completion that is the sampled one
without some of the model's own words. What is missing differs from rollout to rollout; a template
that drops its header drops the same ids everywhere, which is H10's. One rollout in a hundred is a
fault. Healthy: none of 26 recorded runs (0 of 26, interval 0 to 13 %); it is an invariant.

## Probe
The sign on one batch. Then a short conversation with thinking and a tool call is rendered with the
trainer's chat template: each turn must extend the last. One that does not is noted, since a trainer
that appends ids is not harmed by it.

## Experiment
A run with the planted fault against the same without it, matched seeds. For a real template: the
training template that TRL ships (`--chat-template`) against the tokenizer's own.

## Fix
Append ids and never render twice; or use a template that keeps the thinking, such as TRL's
`*_training.jinja`; or train one sample per turn.

## Not to be confused with
H10 template-drift: what the template writes differs. H11 retokenisation: the same words in other
ids. H04 context-truncation: what is missing is at one end.

## References
verl issues 6719 and 6854, ART issue 726 (Qwen3). TRL `is_chat_template_prefix_preserving`;
verifiers, "non-increasing chat templates".
"""

from typing import TYPE_CHECKING

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Finding, Hypothesis, Level
from flatline.hypotheses.identity import identity, judged
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject


class HistoryRewritten(Hypothesis):
    id = "H12"
    name = "history-rewritten"
    headline = "Your chat template rewrites earlier turns before they are trained on."
    explains = ("H03", "H10", "H11", "H20", "H22", "H24")
    meaning = "The policy is improved after a history that it never saw."
    fix = "Train on the sampled ids; use a chat template that keeps the thinking of earlier turns."
    mechanism = "Words of earlier turns are missing from what is trained; in the other arm none is."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Is what is trained the sampled conversation without some of the model's words?"""
        known = identity(trace)
        if known is None:
            raise NotRecorded("rollouts.as_sampled")
        text = (
            f"{len(known.stripped)} of {known.rollouts} rollouts are trained without words that "
            "the model wrote and continued from."
            if known.stripped
            else "No words of the model are missing from what is trained "
            f"({known.rollouts} rollouts)."
        )
        return judged(self, trace, known, known.stripped, text, proven=True)

    def probe(self, subject: "Subject") -> Finding:
        """Is a word missing in the batch, or would the template drop some?"""
        seen = self._on_batch(subject)
        if seen is not None and seen.level in ALARMS:
            return seen
        dropped = subject.tokenizer_fit().drops_thinking
        if dropped is None:
            return seen or self.too_little("the tokenizer has no chat template to try")
        if not dropped:
            return seen or self.found(Level.OK, "The chat template only ever appends.", looked_at=1)
        return self.found(
            Level.NOTE,
            "The chat template drops the thinking of earlier turns. Harmless where ids are "
            "appended, as flatline and TRL do; wrong where a conversation is rendered again.",
            expected="each turn extends the last",
        )

    def _on_batch(self, subject: "Subject") -> Finding | None:
        try:
            return self.sign(subject.trace)
        except NotRecorded:
            return None
