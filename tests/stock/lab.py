"""What the lab policy knows its tool by. A model this small reads no other spelling of it."""

import json
import os

from transformers import AutoTokenizer
from trl.chat_template_utils import qwen3_template

from flatline.tasks import make_task
from flatline.tasks.musique import RETRIEVE

TASK = make_task("musique")
PROBLEMS = TASK.load("lab,,train[:16]", split="train")
PROMPTS = [TASK.messages(problem) for problem in PROBLEMS]


def lab_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL"])
    tokenizer.response_template = qwen3_template
    spelled = f"'{json.dumps(RETRIEVE.schema())}'"
    tokenizer.chat_template = tokenizer.chat_template.replace("tool | tojson", spelled)
    return tokenizer
