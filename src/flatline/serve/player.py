"""The thread that owns the model: it takes turns in, draws their tokens and tells who waits.

New weights wait until the turns in play have ended and those behind them wait for the weights, so
that every answer was written by one version.
"""

import math
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from flatline.errors import FlatlineError
from flatline.rollout.engine import KERNELS
from flatline.rollout.table import evaluating
from flatline.rollout.weights import WeightCopy
from flatline.serve.batch import GONE, Batch, Piece, Turn
from flatline.serve.errors import FAILED, RequestError, overloaded

STOPPING = "The server is stopping."


class Player:
    """Plays turns, many at once."""

    def __init__(
        self, weights: WeightCopy, tokenizer: Any, *, max_batch: int, max_waiting: int
    ) -> None:
        self._weights = weights
        self.tokenizer = tokenizer
        """Used by the player's thread alone."""
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Turn] = deque()
        self._updates: deque[tuple[Any, Future[int]]] = deque()
        self._closing = False
        self._batch = Batch(weights.model)
        self._thread = threading.Thread(target=self._run, name="flatline-player", daemon=True)
        self._thread.start()

    @property
    def weight_version(self) -> int:
        return self._weights.version

    def submit(self, turns: list[Turn]) -> None:
        """Let the turns in, all of them or none."""
        with self._changed:
            if self._closing:
                raise RequestError(STOPPING, status=503, kind=FAILED)
            if len(self._waiting) + len(turns) > self._max_waiting:
                raise overloaded(len(self._waiting))
            self._waiting += turns
            self._changed.notify()

    def update(self, source: Any) -> "Future[int]":
        """Take over the weights of this model; the new version."""
        future: Future[int] = Future()
        with self._changed:
            self._updates.append((source, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Stop after the step that is under way."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        import torch
        from torch.nn.attention import sdpa_kernel

        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(evaluating(self._weights.model))
            stack.enter_context(sdpa_kernel(KERNELS))
            while self._wait():
                self._take_in()
                self._step()
        self._tell_all(STOPPING)

    def _wait(self) -> bool:
        """Until there is something to do; False when the server stops."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or self._waiting or self._updates or len(self._batch)
            )
            return not self._closing

    def _take_in(self) -> None:
        with self._changed:
            if self._updates:
                update = self._updates.popleft() if not len(self._batch) else None
            else:
                update = None
                while self._waiting and len(self._batch) < self._max_batch:
                    turn = self._waiting.popleft()
                    if not turn.gone:
                        self._batch.join(turn)
        if update is not None:
            self._deliver(*update)

    def _deliver(self, source: Any, future: "Future[int]") -> None:
        try:
            future.set_result(self._weights.deliver(source))
        except Exception as error:  # whoever asked is told; the others keep their weights
            future.set_exception(error)

    def _step(self) -> None:
        if not len(self._batch):
            return
        try:
            ended = self._batch.step()
        except Exception as error:  # a server goes on; the turns in play are told
            known = isinstance(error, FlatlineError)
            self._fail(self._batch.give_up(), str(error) if known else _unforeseen(error))
            return
        for turn in ended:
            self._tell(turn)
        for turn in self._batch.streaming():
            self._tell(turn)

    def _tell(self, turn: Turn) -> None:
        """What the turn has gained; nothing where nobody listens or nothing can be read yet."""
        if turn.finish == GONE:
            return
        if any(math.isnan(value) for value in turn.logprobs[turn.sent_ids :]):
            self._fail([turn], "The model gave NaN instead of log-probs: its weights are broken.")
            return
        text = self._text(turn)
        until = len(text) if turn.finish or turn.spelling is None else turn.spelling.certain
        if turn.finish is None and until <= turn.sent_text:
            return
        start, turn.sent_ids = turn.sent_ids, len(turn.completion_ids)
        piece = Piece(
            text=text[turn.sent_text : until],
            ids=turn.completion_ids[start:],
            logprobs=turn.logprobs[start:],
            likely=turn.likely[start:],
            finish=turn.finish,
            stop=turn.spelling.stop if turn.spelling else None,
            weight_version=self._weights.version,
        )
        turn.sent_text = until
        turn.on_piece(piece)

    def _text(self, turn: Turn) -> str:
        """What was written so far, without the token that ended it."""
        if turn.spelling is not None:
            if turn.finish is not None and turn.spelling.stop is None:
                turn.spelling.finish()
            return turn.spelling.text
        ended = turn.completion_ids[-1] in turn.ends
        ids = turn.completion_ids[:-1] if ended else turn.completion_ids
        return str(
            self.tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def _tell_all(self, why: str) -> None:
        with self._changed:
            left = [*self._batch.give_up(), *self._waiting]
            self._waiting.clear()
            updates = list(self._updates)
            self._updates.clear()
        self._fail(left, why)
        for _, future in updates:
            future.cancel()

    def _fail(self, turns: list[Turn], why: str) -> None:
        for turn in turns:
            turn.finish, turn.gone = GONE, True
            version = self._weights.version
            turn.on_piece(Piece("", [], [], [], None, weight_version=version, error=why))


def _unforeseen(error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"The model could not go on: {first[:300]}"
