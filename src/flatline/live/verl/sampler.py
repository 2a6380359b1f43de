"""What the rollout server drew, turn by turn, in the process that asks it.

It travels with the rollout in a field of verl's own (`extra_fields`), which reaches the trainer.
"""

import weakref
from collections.abc import Callable
from typing import Any

from flatline.live.hooks import Guard

DRAWN = "flatline_drawn"
"""Key in `extra_fields`."""


class Turns(list[tuple[list[int], list[int], list[float] | None]]):
    """Of one request, the prompt's ids, those that were drawn, and their log-probs; for every
    turn."""


class SamplerEar:
    """Listens to `LLMServerClient.generate`. An agent loop that asks several times keeps the fields
    of its first answer, so later turns are added to what it holds."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._asked: weakref.WeakValueDictionary[Any, Turns] = weakref.WeakValueDictionary()

    async def generate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        output = await original(*args, **kwargs)
        request = args[0] if args else kwargs.get("request_id")
        self._guard(self._hear, request, kwargs.get("prompt_ids"), output)
        return output

    def _hear(self, request: Any, prompt: Any, output: Any) -> None:
        turns = self._asked.setdefault(request, Turns())
        logps = output.log_probs
        turns.append((list(prompt), list(output.token_ids), None if logps is None else list(logps)))
        output.extra_fields[DRAWN] = turns
