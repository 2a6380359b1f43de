"""Messages and tools of a conversation, in the form that chat templates read."""

import json
from collections.abc import Mapping
from typing import Any

from flatline.serve.errors import wrong

_ROLES = {"system", "developer", "user", "assistant", "tool"}


def tool_of(tool: Any, i: int) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name or tool.get("type") != "function":
        raise wrong(f"tools[{i}]", tool, 'give {"type": "function", "function": {"name": ...}}')
    _refuse_halves(tool, f"tools[{i}]")
    return dict(tool)


def message_of(message: Any, where: str) -> Mapping[str, Any]:
    """A message in the form that chat templates read."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise wrong(f"{where}.role", role, f"give one of {', '.join(sorted(_ROLES))}")
    made = {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get("content"), where),
    }
    if role == "assistant" and message.get("tool_calls"):
        made["tool_calls"] = _calls(message["tool_calls"], where)
    if role == "tool":
        made |= {key: message[key] for key in ("tool_call_id", "name") if message.get(key)}
    _refuse_halves({key: value for key, value in made.items() if key != "content"}, where)
    return made


def _refuse_halves(value: Any, where: str) -> None:
    """The template writes all but the content itself, so what cannot be encoded ends here."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise wrong(where, value, "it holds half of a surrogate pair; take it out") from None


def _content(content: Any, where: str) -> str:
    """The text of a message, also where it comes in parts."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise wrong(f"{where}.content", content, "only text can be read")
        texts.append(text)
    return "".join(texts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    made = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not isinstance(function, dict):
            raise wrong(f"{where}.tool_calls", call, "each needs a `function` with a `name`")
        arguments = _arguments(function.get("arguments"))
        made.append(
            {
                "type": "function",
                "id": str(call.get("id") or ""),
                "function": {"name": name, "arguments": arguments},
            }
        )
    return made


def _arguments(given: Any) -> Any:
    """Templates want an object where OpenAI sends its text; what is none is kept as it is."""
    if not isinstance(given, str):
        return given or {}
    try:
        value = json.loads(given)
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
