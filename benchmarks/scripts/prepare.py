"""What the scripts train: tiny models that add badly, and sums as rows of a JSON-lines file.

    python benchmarks/scripts/prepare.py FOLDER

Writes FOLDER/model and FOLDER/sums.jsonl for `sums.py`, FOLDER/tool-model and
FOLDER/tool-sums.jsonl for `tool_sums.py`. Each model is fitted to transcripts of which most are
wrong, so that it knows the answer and seldom gives it: something that a few steps of GRPO can mend,
and that nobody learns who cannot see the question, or what the tool said.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

NUMBERS = tuple(str(n) for n in range(19))
WORDS = ("<pad>", "<end>", "What", "is", "plus", "?", "####", ".", *NUMBERS)
TOOL_WORDS = (
    *WORDS,
    *("<start>", "user", "assistant", "tool", "<tool_call>", "</tool_call>"),
    *('{"name":', '"add",', '"arguments":', '{"a":', ",", '"b":', "}}"),
)
RIGHT = 0.4
"""Share of the sums that a model is fitted to which are right."""
RIGHT_CALLS = 0.7
"""Share of the tool calls that are."""
FITTED = 1500
"""Steps of fitting."""
BATCH = 64

CHAT = """\
{%- for message in messages -%}
    {{- '<start> ' + message.role + ' ' + (message.content + ' ' if message.content else '') -}}
    {%- for call in message.tool_calls or [] -%}
        {{- '<tool_call> {"name": "' + call.function.name + '", "arguments": {' -}}
        {%- for name, value in call.function.arguments.items() -%}
            {{- ('' if loop.first else ', ') + '"' + name + '": ' + value | string + ' ' -}}
        {%- endfor -%}
        {{- '}} </tool_call> ' -}}
    {%- endfor -%}
    {{- '<end> ' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start> assistant ' -}}{%- endif -%}
"""
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<start> assistant",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<end>\s*", "content": "text"},
    },
}
"""How TRL finds the calls in what the model wrote."""

Transcript = list[str]
"""What was said by others and by the model, in turn."""


def tokenizer(words: tuple[str, ...] = WORDS) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")


def tool_tokenizer() -> PreTrainedTokenizerFast:
    made = tokenizer(TOOL_WORDS)
    made.chat_template, made.response_template = CHAT, RESPONSE
    return made


def prompt(a: int, b: int) -> str:
    return f"What is {a} plus {b} ?"


def sum_said(drawn: random.Random) -> Transcript:
    a, b = drawn.randrange(10), drawn.randrange(10)
    said = a + b if drawn.random() < RIGHT else drawn.randrange(19)
    return [prompt(a, b), f"#### {said} <end>"]


def sum_with_a_tool(drawn: random.Random) -> Transcript:
    """The answer is read off what the tool said, so that the model never learns to add itself."""
    a, b = drawn.randrange(10), drawn.randrange(10)
    called = (a, b) if drawn.random() < RIGHT_CALLS else (drawn.randrange(10), drawn.randrange(10))
    found = sum(called)
    said = found if drawn.random() < RIGHT else drawn.randrange(19)
    call = f'{{"name": "add", "arguments": {{"a": {called[0]} , "b": {called[1]} }}}}'
    return [
        f"<start> user {prompt(a, b)} <end> <start> assistant",
        f"<tool_call> {call} </tool_call> <end>",
        f"<start> tool {found} <end> <start> assistant",
        f"#### {said} <end>",
    ]


def fitted(
    tokens: PreTrainedTokenizerFast, transcript: Callable[[random.Random], Transcript]
) -> Qwen2ForCausalLM:
    """A model that says what the transcripts say, in the turns that are the model's."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokens),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
    )
    drawn = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(FITTED):
        said = [transcript(drawn) for _ in range(BATCH)]
        ids = tokens([" ".join(turns) for turns in said], return_tensors="pt")["input_ids"]
        labels = torch.where(_own(said[0]), ids, -100)
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def _own(turns: Transcript) -> torch.Tensor:
    """Which words are the model's. All transcripts of a kind have as many."""
    return torch.tensor([at % 2 == 1 for at, turn in enumerate(turns) for _ in turn.split()])


def prepare(folder: Path) -> None:
    """Everything that the scripts are given."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(a, b) for a in range(10) for b in range(10)] * 2
    plain = [{"prompt": prompt(a, b), "answer": str(a + b)} for a, b in pairs]
    chat = [one | {"prompt": [{"role": "user", "content": one["prompt"]}]} for one in plain]
    for name, tokens, transcript, rows in (
        ("", tokenizer(), sum_said, plain),
        ("tool-", tool_tokenizer(), sum_with_a_tool, chat),
    ):
        fitted(tokens, transcript).save_pretrained(folder / f"{name}model")
        tokens.save_pretrained(folder / f"{name}model")
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    prepare(parser.parse_args().folder)
