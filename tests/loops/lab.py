"""What the loops train: the last turn of the lab's arithmetic task, with all tool calls made."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flatline.tasks.base import ToolCall
from flatline.tasks.toolmath import ToolMath, read_answer
from flatline.training.lab.tokenizer import checkpoint_folder

torch.set_num_threads(1)


def load_policy():
    folder = checkpoint_folder()
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def problems(tokenizer, count):
    """Pairs of a prompt, as text, and its problem."""
    task = ToolMath()
    found = task.load(f"lab,,train[:{count}]", split="train")
    return [(_prompt(task, one, tokenizer), one) for one in found]


def reward(problem, text):
    """1 for the right number in an answer tag."""
    given, _ = read_answer(text)
    return float(given is not None and str(given) == problem.answer)


def _prompt(task, problem, tokenizer):
    messages = list(task.messages(problem))
    episode = task.episode(problem)
    for call in task.gold(problem):
        if isinstance(call, ToolCall):
            function = {"name": call.name, "arguments": call.arguments}
            calls = [{"type": "function", "function": function}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages.append({"role": "tool", "content": episode.observe(call).text})
    tools = [tool.schema() for tool in task.tools]
    return tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False
    )
