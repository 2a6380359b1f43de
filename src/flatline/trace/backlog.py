"""What waits to be written: bounded, and token detail gives way first."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MOST_BYTES, MOST_ITEMS = 256 * 2**20, 4096
"""What may wait before token detail is dropped."""
LAST_BYTES, LAST_ITEMS = 4 * MOST_BYTES, 16 * MOST_ITEMS
"""What may wait at all: behind a disk that never answers, the training would run out of memory."""
ROOM_WAIT = 2.0
"""Seconds that rollouts and steps wait for room; after that they are taken all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something for the writing thread to do."""

    act: Callable[[], None]
    """What."""
    size: int = 0
    """Bytes that it keeps in memory."""
    token_rows: int = 0
    """Above 0 for token detail, which may be dropped."""
    otherwise: Callable[[], None] | None = None
    """What is still to be done where it is dropped."""
    due: bool = False
    """The training waits for it, and so for all that was put before."""


class Overfull(Exception):
    """More waits than ever may."""


class Backlog:
    """A queue between the training and the thread that writes."""

    def __init__(self, on_drop: Callable[[int], None], *, patient: bool = False) -> None:
        self._on_drop = on_drop
        self._patient, self._due = patient, False
        """A patient thread begins when something is due, and stops when nothing is left."""
        self._items: deque[Item] = deque()
        self._held = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._stalled = False
        """A wait for room was in vain, so none is tried before there is some."""

    def put(self, item: Item) -> None:
        """Take it, or drop it where it is token detail and there is no room."""
        with self._changed:
            if self._held + item.size > LAST_BYTES or len(self._items) >= LAST_ITEMS:
                raise Overfull
            if item.token_rows and self._full(item):
                self._on_drop(item.token_rows)
                if item.otherwise is None:
                    return
                item = Item(act=item.otherwise)
            self._make_room(item)
            self._items.append(item)
            self._due = self._due or item.due
            self._held += item.size
            self._changed.notify_all()

    def take(self) -> Item | None:
        """The next one, as soon as there is one; None after `stop`, when all are taken."""
        with self._changed:
            self._changed.wait_for(self._may_begin)
            found = self._items.popleft() if self._items else None
            self._due = self._due and bool(self._items)
            return found

    def done(self, item: Item) -> None:
        """It no longer needs its memory."""
        with self._changed:
            self._held -= item.size
            self._changed.notify_all()

    def stop(self, *, forget: bool = False) -> None:
        """Nothing more will come; `forget` also what waits."""
        with self._changed:
            self._stopping = True
            if forget:
                self._items.clear()
                self._held = 0
            self._changed.notify_all()

    def _may_begin(self) -> bool:
        return self._stopping or (bool(self._items) and (self._due or not self._patient))

    def _make_room(self, item: Item) -> None:
        self._due = self._due or self._full(item)
        for waiting in [waiting for waiting in self._items if waiting.token_rows]:
            if self._full(item):
                self._drop(waiting)
        if not self._full(item):
            self._stalled = False
        elif not self._stalled:
            self._changed.notify_all()
            self._stalled = not self._changed.wait_for(
                lambda: not self._full(item) or self._stopping, ROOM_WAIT
            )

    def _drop(self, item: Item) -> None:
        """What is still to be done takes its place."""
        at = self._items.index(item)
        del self._items[at]
        if item.otherwise is not None:
            self._items.insert(at, Item(act=item.otherwise))
        self._held -= item.size
        self._on_drop(item.token_rows)

    def _full(self, item: Item) -> bool:
        crowded = bool(self._items) and self._held + item.size > MOST_BYTES
        return crowded or len(self._items) >= MOST_ITEMS
