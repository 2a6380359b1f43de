"""Prompts and completions as text, whatever shape a dump gives them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def told(value: Any) -> str | None:
    """Text as it is, a conversation message by message, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    messages = messages_in(value)
    if messages and all("role" in message for message in messages):
        return "\n".join(_message(message) for message in messages)
    return json.dumps(value, ensure_ascii=False)


def messages_in(value: Any) -> list[dict[str, Any]]:
    return [m for m in value if isinstance(m, dict)] if isinstance(value, list) else []


def prompt_id(given: Any, prompt: str | None) -> str:
    """The id that the dump has, else a hash of the prompt's text."""
    if isinstance(given, str | int) and not isinstance(given, bool):
        return str(given)
    return hashlib.sha256((prompt or "").encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _message(message: Mapping[str, Any]) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    said = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    called = f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else ""
    return f"{message['role']}: {'' if content is None else said}{called}"
