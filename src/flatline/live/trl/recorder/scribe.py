"""From what the hooks heard to rows, beside the training.

All of this is done by the thread that writes, in the order in which it was heard, and most of it
while the step is still under way. What a step left to do when it ends is short: the training waits
for that, so that a killed process loses no completed step.

A rollout's tokens are written with the pass that first trains them, so several passes over one
batch leave one record. `step` is the first optimizer step that trains on the generation a rollout
came from: groups stay whole where one generation feeds several steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flatline.live.batch import Padded, to_numpy
from flatline.live.texts import Texts, Vocabulary
from flatline.live.transfer import Transfer
from flatline.live.trl.recorder.heard import ROLLOUT, Generation, Pass
from flatline.live.trl.recorder.rows import (
    Held,
    Reader,
    Row,
    found_again,
    hold,
    rollout_rows,
    sampler_logps,
    token_row,
)
from flatline.live.trl.recorder.seen_gold import FitOfGold, SeenGold
from flatline.live.trl.recorder.steps import Clip, PassFacts, reward_facts, rollout_facts
from flatline.live.weights import Looked
from flatline.trace.writer import Sink


class Scribe:
    """Rollouts that wait to be trained, and what is known of the step that is under way."""

    def __init__(self, sink: Sink, tokenizer: Any, gold: SeenGold, fit: FitOfGold) -> None:
        self._sink, self._gold, self._fit = sink, gold, fit
        self._texts, self._vocabulary = Texts(tokenizer), Vocabulary(tokenizer)
        self._held: dict[int, Held] = {}
        """Not trained yet, by their numbers."""
        self._fresh: list[Held] = []
        """Sampled for this step, in their order."""
        self._rows: dict[int, Row] = {}
        """Rows of fresh ones that are trained already, by `id`."""
        self._generations: list[Generation] = []
        self._facts: PassFacts | None = None
        self._of_tokens = False
        """Whether tokens of one rollout were seen to have advantages of their own."""
        self._missed = False
        """Whether a pass of this step was passed over."""
        self._ready: list[Callable[[], None]] = []
        """Tokens that are written when the step ends."""
        self._done: dict[int, Row] = {}
        """Facts about steps whose row was not written yet."""

    def generated(self, one: Generation, reader: Reader) -> None:
        one.arrive()
        rollouts = hold(one, reader)
        numbers = to_numpy(one.output[ROLLOUT]).tolist()
        self._held.update(zip(numbers, rollouts, strict=True))
        self._fresh += rollouts
        self._generations.append(one)
        self._texts.learn([ids for one in rollouts for ids in (one.prompt_ids, one.ids)])
        said = one.completions
        if len(said) == len(one.rows):
            answered = [(each.data, said[each.row], each.rewards) for each in rollouts]
            self._gold.look(answered)
            self._fit.look(answered, self._gold.names)

    def passed(self, one: Pass, reader: Reader, clip: Clip) -> None:
        """A pass of the loss; the rollouts that it is the first to train are complete now."""
        one.arrive()
        batch = reader.batch(one.inputs)
        logps = None if one.logps is None else to_numpy(one.logps)
        if logps is not None and logps.shape != batch["completion_ids"].shape:
            logps = None
        attention = one.attention(batch)
        trained = []
        for at, rollout in enumerate(self._let_go(self._numbers(one, batch))):
            if rollout is not None:
                rollout.trained_by(batch, at, logps, attention)
                trained.append(rollout)
        self._facts = self._facts or PassFacts(clip)
        if batch.of_tokens and not self._of_tokens:
            self._of_tokens = True
            self._sink.update_run(advantages_of_tokens=True)
        self._facts.add(one, batch, logps, sampler_logps(batch, trained))
        self._keep_rows([one for one in trained if self._is_fresh(one)], reader)
        self._ready += self._tokens(trained, reader)

    def passed_over(self, numbers: Transfer) -> None:
        """A pass whose tokens were dropped: its rollouts no longer wait for it."""
        self._missed = True
        known = numbers.arrived().get(ROLLOUT)
        self._let_go([] if known is None else to_numpy(known).tolist())

    def end_step(self, step: int, reader: Reader, looked: Looked | None, norm: Transfer) -> None:
        """Write all but the row of the step itself, which may wait for the trainer's log."""
        rows = self._write_rollouts(reader)
        facts = reward_facts(self._generations, reader) | rollout_facts(rows)
        if self._facts is not None:
            self._facts.whole &= not self._missed
            facts |= self._facts.row()
        if looked is not None:
            self._sink.write("weights", looked.rows())
        found = norm.arrived().get("grad_norm")
        self._done[step] = facts | {"grad_norm": None if found is None else float(found)}
        self._generations, self._facts, self._missed = [], None, False
        self._texts.forget()

    def write_step(self, row: Row, rank: int) -> None:
        """What the trainer logged goes before what was computed here; process 0 writes it."""
        facts = self._done.pop(row["step"], {})
        if rank == 0:
            self._sink.write("steps", [{**facts, **row}])

    def flush(self, reader: Reader) -> None:
        """Write what was never trained, without the trainer's log-probs."""
        self._write_rollouts(reader)
        for write in self._tokens(list(self._held.values()), reader):
            write()
        self._held.clear()
        self._generations, self._facts = [], None

    def _numbers(self, one: Pass, batch: Padded) -> list[int]:
        numbers = one.inputs.get(ROLLOUT)
        return [] if numbers is None else found_again(batch, to_numpy(numbers).tolist(), self._held)

    def _is_fresh(self, rollout: Held) -> bool:
        """Whether its row is still to be written."""
        return any(rollout.generation is one for one in self._generations)

    def _let_go(self, numbers: Sequence[int]) -> list[Held | None]:
        return [self._held.pop(number, None) for number in numbers]

    def _keep_rows(self, rollouts: Sequence[Held], reader: Reader) -> None:
        reader = replace(reader, gold_names=self._gold.names)
        rows = rollout_rows(rollouts, reader, self._texts)
        self._rows |= {id(one): row for one, row in zip(rollouts, rows, strict=True)}

    def _write_rollouts(self, reader: Reader) -> list[Row]:
        """Rollouts and tokens of the step, in the order in which they were sampled."""
        self._keep_rows([one for one in self._fresh if id(one) not in self._rows], reader)
        rows = [self._rows[id(one)] for one in self._fresh]
        self._sink.write("rollouts", rows)
        for write in self._ready:
            write()
        self._fresh, self._rows, self._ready = [], {}, []
        return rows

    def _tokens(self, rollouts: Sequence[Held], reader: Reader) -> list[Callable[[], None]]:
        """Ready to be written."""
        rows = [token_row(one, reader) for one in rollouts]
        prepare = self._sink.prepare
        return [prepare("tokens", rows), prepare("vocabulary", self._vocabulary.rows(rows))]
