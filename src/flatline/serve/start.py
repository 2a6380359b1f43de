"""From the name of a model to a guarded application."""

import copy
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from flatline.loopback import Bind, guarded
from flatline.rollout.engine import eos_of
from flatline.rollout.playable import (
    check_cache,
    max_context_of,
    refuse_virtual_tokens,
    refuse_what_cannot_be_played,
)
from flatline.rollout.table import evaluating
from flatline.rollout.weights import WeightCopy
from flatline.serve.app import Served, application
from flatline.serve.conversation import Conversations
from flatline.serve.errors import RequestError
from flatline.serve.player import Player

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request: a conversation of a million tokens of text."""
MAX_BATCH, MAX_WAITING = 32, 256


def start(
    name: str,
    *,
    device: str | None = None,
    dtype: str = "float32",
    chat_template: str | None = None,
    max_context: int | None = None,
    max_batch: int = MAX_BATCH,
    max_waiting: int = MAX_WAITING,
) -> Served:
    """Load the model, check that it can be played, and start to play."""
    from flatline.training.models import load_policy

    policy = load_policy(name, device=device, dtype=dtype, chat_template=chat_template)
    model = policy.model
    refuse_virtual_tokens(model)
    context = max_context_of(model, max_context)
    refuse_what_cannot_be_played(model, context)
    with evaluating(model):
        check_cache(model)

    def load(folder: str) -> Any:
        return load_policy(folder, device=device, dtype=dtype).model

    return Served(
        name=name,
        # The tokenizer is not safe to use from two threads at once.
        player=Player(
            WeightCopy(model),
            copy.deepcopy(policy.tokenizer),
            max_batch=max_batch,
            max_waiting=max_waiting,
        ),
        tokenizer=policy.tokenizer,
        conversations=Conversations(policy.tokenizer),
        ends=eos_of(model),
        max_context=context,
        load=load,
    )


def guarded_application(served: Served, bind: Bind) -> ASGIApp:
    """The addresses, for whoever may ask."""
    return guarded(
        application(served),
        hosts=bind.hosts,
        token=bind.token,
        max_body=MAX_BODY,
        refusal=_refusal,
    )


def _refusal(status: int, reason: str) -> Response:
    return JSONResponse(RequestError(reason, status=status).to_json(), status_code=status)
