"""A special token appears twice, or the tokenizer belongs to another model.

## What goes wrong
The chat template writes the token that begins a text and the tokenizer adds it again; or the
trainer loads another tokenizer than the sampler. The model reads something it was never trained on,
and log-probs belong to another text. Or the template writes calls with tokens that were never
trained: their rows of the output layer are all the same, so the model cannot write one of them
rather than another, however long adapters are trained.

## Sign
Trained prompts whose first two tokens are the same: nothing that people or templates write begins
like that. All of them is a fault, half of them are noted. Healthy: none of 26 runs (interval 0 to
13 %); an invariant.

## Probe
The sign on one batch, then the tokenizer against the model. Faults:

- ids that the model has no row for;
- prompts of which each holds another prompt inside its user's turn;
- a template that writes something between prompt and answer but leaves it out of every prompt
  (templates that write nothing there, such as Mistral's, need no opening);
- prompts that end with the token that ends a turn;
- tokens that the chat template wants the model to write and whose frozen rows of the output layer
  are equal to those of other tokens, if no rollout calls a tool. If some do, they spell it
  differently, and it is noted.

Last, a templated prompt is encoded as plain text: if that doubles its first token it is noted,
since your own code may do the same.

## Experiment
A run with the planted fault against the same without it, matched seeds. On your own trainer:
`add_special_tokens=False` where templated text is encoded, against the default.

## Fix
Encode templated text with `add_special_tokens=False`, or let `apply_chat_template` tokenize. Load
one tokenizer and hand it to both sides.

## Not to be confused with
H10 template-drift: the templates differ, not their tokens. H11 retokenisation: words are split
differently.

## References
Llama, Gemma and Mistral write BOS in their templates. rlvr's troubleshooting page: a trainer that
fell back to another model's tokenizer. verifiers and PRIME-RL take a separate tokenizer name.
Qwen2.5-Coder-1.5B-Instruct: 298 equal rows, `<tool_call>` and `</tool_call>` among them; a warm
start of LoRA to a loss of 0.33 nats still never wrote a call that could be read.
"""

from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.logprobs import MASK_STEPS, some_steps
from flatline.hypotheses.logs import in_steps
from flatline.hypotheses.prompt_ends import prompt_texts
from flatline.trace import Trace
from flatline.trace.tokens import Tokens

if TYPE_CHECKING:
    from flatline.live.records import TokenizerFit
    from flatline.live.subject import Subject

ALL = 0.99
"""Share of the prompts that begin with a doubled token; a template is the same for all."""
MANY = 0.5
"""Share from which on it is noted: words of single letters begin like that, too."""
MARK = 12
"""Characters of a template's beginning that show it inside a turn: the length of `<|im_start|>`."""
SHOWN = 6
"""Tokens of a prompt that an example quotes."""


class SpecialTokens(Hypothesis):
    id = "H16"
    name = "special-tokens"
    headline = "Your tokenizer does not fit your model or your prompts."
    explains = ("H03", "H10", "H20", "H22", "H24")
    meaning = "The model is trained on a text that begins like nothing it has ever read."
    fix = "Encode templated text with add_special_tokens=False; use one tokenizer on both sides."
    mechanism = "Prompts begin with a doubled token; in the other arm they do not."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do prompts begin with the same token twice?"""
        steps = some_steps(trace, MASK_STEPS)
        tokens = trace.tokens(steps)
        doubled, rows = _doubled(tokens)
        if not len(doubled):
            raise NotRecorded("tokens.prompt_ids")
        share = float(doubled.mean())
        level = Level.FAULT if share >= ALL else Level.NOTE if share >= MANY else Level.OK
        text = (
            f"{doubled.sum()} of {len(doubled)} trained prompts{in_steps(trace, steps)} begin with "
            "the same token twice."
        )
        return self.found(
            level,
            text,
            measured=share,
            expected="0",
            evidence=_examples(trace, tokens, rows[doubled]),
            severity=20 * share,
            proven=True,
            looked_at=len(doubled),
        )

    def probe(self, subject: "Subject") -> Finding:
        """Is a token doubled, and does the tokenizer fit the model?"""
        seen = self.sign(subject.trace)
        if seen.level in ALARMS:
            return seen
        fit = subject.tokenizer_fit()
        rows, ids = fit.rows, fit.highest_id
        if ids >= rows:
            return self.found(
                Level.FAULT,
                f"The tokenizer has ids up to {ids}, the model {rows} rows: they do not belong "
                "together.",
                measured=float(ids - rows + 1),
                expected="no id beyond the model",
            )
        return (
            self._template(subject.trace, fit)
            or self._closed(subject.trace, fit)
            or self._unwritable(subject)
            or self._if_encoded(fit.doubled)
            or seen
        )

    def _template(self, trace: Trace, fit: "TokenizerFit") -> Finding | None:
        """Prompts that went through the template twice, or whose template opens no turn for the
        answer. Only where every prompt of the batch went through it."""
        texts = prompt_texts(trace) if fit.before_user.strip() else []
        if not texts or not all(fit.before_user in text for text in texts):
            return None
        inner = fit.before_user[:MARK]
        if not inner[0].isalnum() and all(fit.before_user + inner in text for text in texts):
            return self.found(
                Level.FAULT,
                f"All {len(texts)} prompts hold a prompt inside a user's turn "
                f"({fit.before_user + inner!r}): they went through the chat template twice.",
                measured=1.0,
                expected="once",
                headline="Your prompts go through the chat template twice.",
                fix="Give the messages to the trainer, and not the text that the template made.",
            )
        if not fit.unopened:
            return None
        return self.found(
            Level.FAULT,
            f"Prompts end before {fit.unopened!r}, with which the chat template begins an answer: "
            "it writes the same with and without `add_generation_prompt`.",
            measured=1.0,
            expected="the opening of the model's turn",
            headline="Your chat template does not open the model's turn.",
            fix="Let {chat_template} write the opening where `add_generation_prompt` is set.",
        )

    def _closed(self, trace: Trace, fit: "TokenizerFit") -> Finding | None:
        """Prompts that end with an end: what comes after it was never an answer."""
        last = _last_of_prompts(trace)
        ends = {fit.turn_end, fit.end} - {None}
        if not len(last) or len(set(last)) > 1 or int(last[0]) not in ends:
            return None
        return self.found(
            Level.FAULT,
            f"All {len(last)} prompts end with {trace.text(int(last[0]))!r}, the token that ends a "
            "turn: the model is asked to go on after its own end.",
            measured=1.0,
            expected="the opening of the model's turn",
            headline="Your prompts end with the token that ends a turn.",
            fix="Let the prompt stop where the answer begins: take the end token out of what "
            "{chat_template}, or the tokenizer, puts after it.",
        )

    def _unwritable(self, subject: "Subject") -> Finding | None:
        """Tokens of the format that the model cannot tell from others."""
        found = subject.unwritable_tokens()
        if not found:
            return None
        silent = not np.nansum(subject.trace.rollouts["tool_calls"])
        told = ", ".join(f"{text} ({count} others)" for text, count in found.items())
        return self.found(
            Level.FAULT if silent else Level.NOTE,
            f"The model cannot distinguish tokens that it must write from others, because their "
            f"frozen rows of the output layer are the same: {told}."
            + (" No rollout calls a tool." if silent else " Some rollouts call tools anyway."),
            measured=float(max(found.values())),
            expected="rows that differ from all others",
            fix="Set {chat_template} to one that writes calls in plain text, or train these rows "
            "as well (`modules_to_save` of LoRA, or all weights).",
        )

    def _if_encoded(self, doubled: str) -> Finding | None:
        """What plain encoding of a templated prompt would give."""
        if not doubled:
            return None
        return self.found(
            Level.NOTE,
            f"Templated text that is encoded with special tokens begins with "
            f"{doubled!r} twice. This trainer's prompts do not.",
            expected="once",
        )


def _last_of_prompts(trace: Trace) -> np.ndarray:
    """The last token of each prompt that is more than a blank."""
    tokens = trace.tokens()
    blank = [one for one in np.unique(tokens.prompt_ids) if not trace.text(int(one)).strip()]
    written = ~np.isin(tokens.prompt_ids, blank)
    ids, row = tokens.prompt_ids[written], tokens.prompt_row[written]
    return np.asarray(ids[np.flatnonzero(np.diff(row, append=-1))])


def _doubled(tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """For every prompt of two tokens or more, whether the first is doubled; and its rollout."""
    length = np.bincount(tokens.prompt_row, minlength=len(tokens.rollout_rows))
    start = np.cumsum(length) - length
    rows = np.flatnonzero(length > 1)
    ids = tokens.prompt_ids
    return np.asarray(ids[start[rows]] == ids[start[rows] + 1]), rows


def _examples(trace: Trace, tokens: Tokens, rows: np.ndarray) -> list[Evidence]:
    found = []
    for row in rows[:2]:
        ids = tokens.prompt_ids[tokens.prompt_row == row][:SHOWN]
        at = tokens.rollout_rows[row]
        found.append(Evidence.of(trace, at, f"the prompt begins {trace.decode(ids)!r}"))
    return found
