"""Builders of what the rollout tests play with: a tokenizer, a model and a task, all tiny."""

from collections.abc import Mapping

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from flatline.rollout.chat import ChatFormat, load_chat_template
from flatline.tasks.base import (
    Episode,
    Message,
    Observation,
    Problem,
    Score,
    Script,
    Task,
    Tool,
    ToolCall,
)

torch.set_num_threads(1)

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
STRUCTURE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of their own that are not flagged special, as in Qwen."""
MERGES = ["t h", "th e", ". Ċ", "Ċ Ċ", "a n", "o o", '" }', "Ġ the"]
"""Some of them cross the border of content and template, as those of real tokenizers do."""

LOOK = Tool(
    name="look",
    description="Looks something up.",
    parameters={"query": {"type": "string"}, "top_n": {"type": "integer", "default": 2}},
)


def tokenizer_with(template: str | None = "hermes", *, eos: str = "<|im_end|>"):
    """A byte-level tokenizer; `template` is a name for `load_chat_template`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(merge.split()) for merge in MERGES]
    words = alphabet + ["".join(merge) for merge in merges]
    core = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in STRUCTURE])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        pad_token="<|endoftext|>",
        bos_token="<|begin_of_text|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = load_chat_template(template) if template else None
    return tokenizer


def tiny_model(*, vocab: int = 300, seed: int = 0, **changes):
    """A random two-layer Qwen2 that leaves the global random state alone."""
    settings = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**{**settings, **changes})).eval()


def problem(i: int = 0, question: str | None = None) -> Problem:
    question = question or f"Question {i}: " + "who is it?" * (i % 5)
    return Problem(id=f"p{i}", question=question, answer="x", hops=1 + i % 3)


class ToyEpisode(Episode):
    tools = (LOOK,)
    reply = "Found {}. It is the one.\n"

    def _run(self, call: ToolCall) -> Observation:
        return Observation(text=self.reply.format(call.arguments["query"]), documents=(7,))

    def score(self, final: str | None) -> Score:
        reward = float(final is not None)
        return Score(reward=reward, parts={"answered": reward})


class ToyTask(Task):
    name = "toy"
    tools = (LOOK,)

    def load(self, specs: str, *, split: str) -> list[Problem]:
        return [problem(i) for i in range(4)]

    def messages(self, problem: Problem) -> list[Message]:
        system = {"role": "system", "content": "Answer."}
        return [system, {"role": "user", "content": problem.question}]

    def episode(self, problem: Problem) -> Episode:
        return ToyEpisode(problem)

    def gold(self, problem: Problem) -> Script:
        return []

    def corruptions(self, problem: Problem) -> Mapping[str, Script]:
        return {}


class EagerChat(ChatFormat):
    """Reads every turn as a call, and takes many tokens for the end of one, so that a random model
    plays long episodes with turns of all lengths."""

    stops = range(0, 300, 12)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.eos_ids = self.eos_ids | set(self.stops)

    def parse(self, text):
        if text.startswith("a"):
            return []
        return [ToolCall(name="look", arguments={"query": text})] * (1 + len(text) % 2)
