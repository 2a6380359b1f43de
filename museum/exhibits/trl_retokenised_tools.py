"""After a tool has answered, the whole conversation is made text and tokenised anew, so the
model's own words may come back as other ids than it sampled. They are trained with log-probs
that nobody sampled them with.
"""

import json
from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.29.0",
    good="1.0.0",  # 0.29.1 loses the newline behind a turn (TRL #5330)
    beside=("jmespath==1.0.1",),
    lines="trl/trainer/grpo_trainer.py, `_tool_call_loop`; no `_get_tool_suffix_ids`",
    expects=("H11", "H10", "H50", "H51"),
)

TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""How the lab policy writes its calls, for the transformers that is installed."""


def retrieve_documents(query: str, top_n: int = 2) -> str:
    """
    Searches the documents and returns those that fit the query best.

    Args:
        query: What to look for.
        top_n: How many documents to return.
    """
    return f"Document ID: 1\n# {query}\nThey work for Corndera."


def used_the_tool(completions: list[Any], **_: Any) -> list[float]:
    """And a little for more words, so that groups differ."""
    return [
        float(any(message["role"] == "tool" for message in one))
        + len(one[-1].get("content") or "") / 1000
        for one in completions
    ]


def run(folder: Path) -> dict[str, Any]:
    # So that some words are written in other pieces than the tokenizer would choose.
    return looked(trainer(folder, parts(), temperature=1.5), folder)


def parts() -> tuple[Any, Any]:
    """Model and tokenizer, which reads and writes calls as the lab policy does."""
    from flatline.tasks.musique import RETRIEVE

    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # TRL 0.29 asks in a way that transformers no longer hears
    # A model this small reads no other spelling of its tool.
    spelled = f"'{json.dumps(RETRIEVE.schema())}'"
    tokenizer.chat_template = tokenizer.chat_template.replace("tool | tojson", spelled)
    # TRL 0.29 asks for a schema, which the transformers that is installed no longer reads.
    tokenizer.response_schema = {"type": "object"}
    tokenizer.response_template = TEMPLATE
    parse, begin = tokenizer.parse_response, TEMPLATE["start_anchor"]
    # A turn of calls alone has no content, which TRL 0.29 reads.
    tokenizer.parse_response = lambda ids, *_, **__: {"content": ""} | parse(ids, prefix=begin)
    return model, tokenizer


def trainer(
    folder: Path, parts: tuple[Any, Any], tool: Any = retrieve_documents, **given: Any
) -> Any:
    """One that may look things up."""
    from flatline.tasks import make_task

    task = make_task("musique")
    problems = task.load("lab,,train[:16]", split="train")
    return lab.trainer(
        folder,
        parts=parts,
        data=[{"prompt": task.messages(one)} for one in problems],
        more={"tools": [tool]},
        max_completion_length=192,
        **{"rewards": [used_the_tool]} | given,
    )
