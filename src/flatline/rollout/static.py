"""Decodes without the host: cache, tokens and random numbers stay where they are in memory.

A step reads and writes the same tensors every time, so a GPU can record it once and replay it
(`flatline.rollout.graphs`); launching the thousand small kernels of a step one by one takes many
times as long as running them. Shapes come in few sizes: rows of a step are rounded up to powers of
two, columns to these and the middle between them. Rows without a play and rows that have ended
write to the bin of their slot.

The host looks every few steps, at flags that are a few steps old: the device never waits for it. A
turn therefore runs a few steps past its end, and what those wrote is thrown away. A round ends once
half of its turns have; the other plays are in the middle of theirs, and go on in the next round.
"""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flatline.rollout import kernels
from flatline.rollout.autocast_weights import Casts
from flatline.rollout.graphs import Graphs, setting
from flatline.rollout.grouped import reads_own_keys, sharing_keys
from flatline.rollout.kv import SlotCache
from flatline.rollout.loop import Plan, note
from flatline.rollout.rows import PARKING, Flags, Rows
from flatline.rollout.table import Play, Table, forward

MIN_ROWS = 8
MIN_COLUMNS = 256
LOOK_EVERY = 4
"""Steps from one look at the flags to the next."""
WAITING = 0.5
"""A round is over once this share of its turns has ended: their tools run, and the others go on
beside their next turns. Waiting for the longest turn would leave most rows idle most of the time;
feeding observations costs about as much as ten steps, so it is not done for each."""
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


class Static:
    """Rounds of steps that are all alike."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self._cache: StaticCache | None = None
        self._rows: Rows | None = None
        self._flags: Flags | None = None
        self._casts: Casts | None = None
        self._setting: Any = None
        self._alone = False
        """Whether rows read their own keys alone: steps then have one width."""
        self._columns = 0
        """What the last batch needed, where its cache was let go: growing means recording again."""

    @contextmanager
    def playing(self, model: Any) -> Iterator[None]:
        """Nothing that was made for other weights is used; nothing is held that others need."""
        now = setting(model)
        if now != self._setting:
            self.forget()
            self._setting = now
        self._alone = reads_own_keys(model)
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
        # For most rounds whole: a cache that grows in the middle of one is recorded twice.
        ends = [len(play) + min(turn.rooms[play], MIN_COLUMNS) for play in table.plays]
        self._make_room(cache, max(ends))
        late = {i: play.pending()[0] for i, play in enumerate(table.plays) if play.is_writing}
        fresh = [i for i in range(len(table.plays)) if i not in late]
        with self._faster(model):
            logits_FV = table.feed(fresh)
            rows = self._ready_rows(cache.slots, turn, logits_FV.device)
            rows.begin(table.starts, late, turn, [turn.rooms[play] for play in table.plays])
            rows.draw_first(logits_FV, fresh, turn.sampling)
            drawn = self._run(model, table, rows, turn)
        return _hand_out(rows, table.plays, late, drawn, turn)

    @contextmanager
    def _faster(self, model: Any) -> Iterator[None]:
        """The model inside computes the same in fewer and smaller kernels."""
        assert self._casts is not None
        with (
            self._casts.used(),
            kernels.fused(model),
            kernels.rotating(model),
            sharing_keys(model),
        ):
            yield

    def _run(self, model: Any, table: Table, rows: Rows, turn: Plan) -> int:
        """Step until enough have ended. How many tokens each row has drawn."""
        flags, plays = self._ready_flags(rows), len(table.plays)
        shape, last = height(plays, table.cache.slots), len(turn.uniforms_NB) + 1
        for n in range(1, last):
            if n % LOOK_EVERY == 0:
                if flags.asked and sum(flags.read()[:plays]) >= WAITING * plays:
                    return n
                flags.ask(rows.done_B)
            longest = max(table.starts) + n
            self._make_room(table.cache, columns(longest))
            self._step(model, table.cache, rows, (shape, longest), turn)
        return last

    def _step(
        self, model: Any, cache: SlotCache, rows: Rows, shape: tuple[int, int], turn: Plan
    ) -> None:
        """Every first row reads its token and draws the next."""
        first, longest = shape
        alone = self._alone
        width = cache.capacity if alone else columns(longest)
        used = max(cache.used, longest)

        def step() -> None:
            at_B, done_B = rows.at_B[:first], rows.done_B[:first]
            write_B = at_B.masked_fill(done_B, cache.bin)
            ids_BT, at_BT, write_BT = rows.ids_B[:first, None], at_B[:, None], write_B[:, None]
            lengths_B = (at_B + 1).masked_fill(done_B, 1) if alone else None
            logits_BV = forward(
                model, cache, ids_BT, at_BT, write_BT=write_BT, width=width, lengths_B=lengths_B
            )
            at_B += ~done_B
            rows.draw(logits_BV, turn.sampling)

        self.graphs.run((first, width, turn.sampling), step, rows.parked)
        cache.used = used  # a replay tells the host nothing, and a width is no length

    def _make_room(self, cache: SlotCache, tokens: int) -> None:
        if tokens > cache.capacity:
            self.graphs.clear()
            cache.reserve(tokens)

    def _ready_rows(self, slots: int, turn: Plan, device: torch.device) -> Rows:
        tokens, ends = len(turn.uniforms_NB) + 1 + PARKING, tuple(sorted(turn.ends))
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


def _hand_out(
    rows: Rows, plays: list[Play], late: Container[int], drawn: int, turn: Plan
) -> set[Play]:
    """Give every play its tokens, up to the end of its turn. The only wait for the device."""
    drawn_BN, logps_BN = rows.drawn_NB[:drawn].T.tolist(), rows.logps_NB[:drawn].T.tolist()
    ended: set[Play] = set()
    for i, play in enumerate(plays):
        first = 1 if i in late else 0
        for id, logprob in list(zip(drawn_BN[i], logps_BN[i], strict=True))[first:][
            : turn.rooms[play]
        ]:
            play.completion_ids.append(id)
            note(play, logprob)
            if id in turn.ends:
                ended.add(play)
                break
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
