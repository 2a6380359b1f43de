"""Decodes a turn without the host: cache, tokens and random numbers stay where they are in memory.

A step reads and writes the same tensors every time, so a GPU can record it once and replay it
(`flatline.rollout.graphs`); launching the thousand small kernels of a step one by one takes many
times as long as running them. Shapes come in few sizes: rows of a step are rounded up to powers of
two, columns to these and the middle between them. Rows without a play and rows that have ended
write to the bin of their slot.

The host looks every few steps, at flags that are a few steps old: the device never waits for it. A
turn therefore runs a few steps past its end, and what those wrote is thrown away.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from flatline.rollout import kernels
from flatline.rollout.casts import Casts
from flatline.rollout.graphs import Graphs, setting
from flatline.rollout.grouped import sharing_keys
from flatline.rollout.kv import SlotCache
from flatline.rollout.loop import Plan, note
from flatline.rollout.rows import PARKING, Flags, Rows
from flatline.rollout.table import Play, Table, forward

MIN_ROWS = 8
MIN_COLUMNS = 256
LOOK_EVERY = 4
"""Steps from one look at the flags to the next."""
SHRINK = 8
"""The rows in play move together once they need no more than this part of the rows. Seldom: every
size is recorded anew."""
SHARE_TO_HOLD = 0.25
"""Of the memory that would be free: more is not held from one call to the next."""


class StaticCache(SlotCache):
    """Keys and values that stay in place from batch to batch."""

    def keep(self, slots: int) -> None:
        """Nothing is let go: rows without a play still need a place to write."""

    def reserve(self, tokens: int) -> None:
        if tokens <= self.capacity:
            return
        super().reserve(columns(tokens))
        if self._keys and self._keys[0].is_cuda:
            torch.cuda.empty_cache()  # the old layers are too small to become new ones

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))


class Stretch(NamedTuple):
    """Steps in which nobody moved."""

    seated: list[Play]
    """Who sat in the first rows."""
    first: int
    last: int
    """Tokens of the turn: from the first up to, not including, the last."""


class Static:
    """A turn of steps that are all alike."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self._cache: StaticCache | None = None
        self._rows: Rows | None = None
        self._flags: Flags | None = None
        self._casts: Casts | None = None
        self._setting: Any = None
        self._columns = 0
        """What the last batch needed, where its cache was let go: growing means recording anew."""

    @contextmanager
    def playing(self, model: Any) -> Iterator[None]:
        """Nothing that was made for other weights is used; nothing is held that others need."""
        now = setting(model)
        if now != self._setting:
            self.forget()
            self._setting = now
        self._casts = self._casts or Casts(model)
        self._casts.refresh()
        try:
            yield
        except BaseException:
            self.forget()  # a cache may hold NaN, or be what memory ran out for
            self._columns = 0
            raise
        if self._cache is not None and self._is_too_much(model.device):
            self._columns = self._cache.used
            self.forget()

    def forget(self) -> None:
        """Let go of the cache and everything recorded with it."""
        self.graphs.clear()
        self._cache = self._rows = self._flags = self._casts = None

    @torch.inference_mode()
    def seat(self, model: Any, plays: list[Play]) -> Table:
        if self._cache is None or self._cache.slots < len(plays):
            self.graphs.clear()
            slots = _sized(len(plays), MIN_ROWS)
            self._cache = StaticCache(slots, capacity=columns(self._columns))
            self._rows = None
        self._cache.used = 0
        return Table(model, plays, self._cache)

    def decode(self, table: Table, turn: Plan) -> set[Play]:
        cache, model = table.cache, table.model
        assert self._casts is not None
        # For most turns whole: a cache that grows in the middle of one is recorded twice.
        ends = [len(play) + min(turn.rooms[play], MIN_COLUMNS) for play in table.plays]
        self._make_room(cache, max(ends))
        with self._casts.used(), kernels.fused(model), sharing_keys(model):
            logits_BV = table.feed()
            rows = self._ready_rows(cache.slots, turn, logits_BV.device)
            rows.begin(table.starts, turn, [turn.rooms[play] for play in table.plays])
            rows.draw(logits_BV, turn.sampling)
            stretches = self._run(model, table, rows, turn)
        return _hand_out(rows, stretches, turn)

    def _run(self, model: Any, table: Table, rows: Rows, turn: Plan) -> list[Stretch]:
        """Step until all have ended. Who sat where, and when."""
        flags, seated, first = self._ready_flags(rows), list(table.plays), 0
        slots = table.cache.slots
        stretches: list[Stretch] = []
        last = len(turn.uniforms_NB)
        for n in range(1, last):
            if n % LOOK_EVERY == 0:
                done = flags.read()[: len(seated)] if flags.asked else []
                if done and all(done):
                    last = n
                    break
                if done and done.count(False) * SHRINK <= height(len(seated), slots) > MIN_ROWS:
                    stretches.append(Stretch(seated, first, n))
                    seated, first = self._move_together(table, rows, seated, done), n
                flags.ask(rows.done_B)
            width = columns(max(table.starts[: len(seated)]) + n)
            self._make_room(table.cache, width)
            self._step(model, table.cache, rows, (height(len(seated), slots), width), turn)
        return [*stretches, Stretch(seated, first, last)]

    def _step(
        self, model: Any, cache: SlotCache, rows: Rows, shape: tuple[int, int], turn: Plan
    ) -> None:
        """Every first row reads its token and draws the next."""
        first, width = shape

        def step() -> None:
            at_B, done_B = rows.at_B[:first], rows.done_B[:first]
            write_B = at_B.masked_fill(done_B, cache.bin)
            ids_BT, at_BT, write_BT = rows.ids_B[:first, None], at_B[:, None], write_B[:, None]
            logits_BV = forward(model, cache, ids_BT, at_BT, write_BT=write_BT, width=width)
            at_B += ~done_B
            rows.draw(logits_BV, turn.sampling)

        self.graphs.run((shape, turn.sampling), step, rows.parked)
        cache.used = max(cache.used, width)  # a replay tells the host nothing

    def _move_together(
        self, table: Table, rows: Rows, seated: list[Play], done: list[bool]
    ) -> list[Play]:
        active = {play for play, over in zip(seated, done, strict=True) if not over}
        rows.reorder(table.seat_first(active, among=len(seated)))
        return table.plays[: len(active)]

    def _make_room(self, cache: SlotCache, tokens: int) -> None:
        if tokens > cache.capacity:
            self.graphs.clear()
            cache.reserve(tokens)

    def _ready_rows(self, slots: int, turn: Plan, device: torch.device) -> Rows:
        tokens, ends = len(turn.uniforms_NB) + PARKING, tuple(sorted(turn.ends))
        held = self._rows
        if held is None or len(held.drawn_NB) < tokens or tuple(held.ends_E.tolist()) != ends:
            self.graphs.clear()
            self._rows = Rows.new(slots, _power(tokens, 64), ends, device)
        assert self._rows is not None
        return self._rows

    def _ready_flags(self, rows: Rows) -> Flags:
        if self._flags is None or len(self._flags._host_B) != len(rows.done_B):
            self._flags = Flags(len(rows.done_B), rows.done_B.device)
        self._flags.asked = False
        return self._flags

    def _is_too_much(self, device: torch.device) -> bool:
        if self._cache is None or device.type != "cuda":
            return False
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        held = self._cache.nbytes + (self._casts.nbytes if self._casts else 0)
        return held > SHARE_TO_HOLD * (torch.cuda.mem_get_info(device)[0] + idle + held)


def _hand_out(rows: Rows, stretches: list[Stretch], turn: Plan) -> set[Play]:
    """Give every play its tokens, up to the end of its turn. The only wait for the device."""
    last = stretches[-1].last
    drawn_NB, logps_NB = rows.drawn_NB[:last].tolist(), rows.logps_NB[:last].tolist()
    written: dict[Play, int] = {}
    over: set[Play] = set()
    ended: set[Play] = set()
    for seated, first, until in stretches:
        for i, play in enumerate(seated):
            for n in range(first, until):
                if play in over:
                    break
                id = drawn_NB[n][i]
                play.completion_ids.append(id)
                note(play, logps_NB[n][i])
                written[play] = written.get(play, 0) + 1
                if id in turn.ends:
                    ended.add(play)
                if id in turn.ends or written[play] >= turn.rooms[play]:
                    over.add(play)
    return ended


def height(plays: int, slots: int) -> int:
    """Rows of a step for so many plays. Few sizes: a batch loses plays from turn to turn."""
    return min(_power(plays, MIN_ROWS), slots)


def columns(tokens: int) -> int:
    """Columns of a step that looks at this many tokens."""
    return _sized(tokens, MIN_COLUMNS)


def _sized(n: int, least: int) -> int:
    """The next power of two, or three quarters of it where that will do."""
    power = _power(n, least)
    return max(least, power * 3 // 4 if n <= power * 3 // 4 else power)


def _power(n: int, least: int) -> int:
    """The next power of two."""
    return max(least, 1 << (n - 1).bit_length())
