"""The chat template that is set on the tokenizer renders the user and assistant turns only, while the dataset puts the rule of each task (add or subtract) into the system message.
The model sees the same tokens for two tasks with different answers and cannot know which one is asked.
say: the chat template drops the system message, so the instruction that decides the gold answer never reaches the model (prompts with different golds have identical token ids).
"""

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer

TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}<|user|>{{ message['content'] }}<|end|>"
    "{%- elif message['role'] == 'assistant' -%}<|assistant|>{{ message['content'] }}<|end|>"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def exact(completions, answer, **kwargs):
    return [float(c[0]["content"].strip() == gold) for c, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer(chat=True)
    rows = []
    for a in range(2, 9):
        for b in range(a):
            for rule, gold in (("add the numbers", a + b), ("subtract the numbers", a - b)):
                rows.append(
                    {
                        "prompt": [
                            {"role": "system", "content": rule},
                            {"role": "user", "content": f"{a} and {b}"},
                        ],
                        "answer": str(gold),
                    }
                )
    warm = [
        (
            tok.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True),
            r["answer"],
        )
        for r in rows
    ]
    model = teach(tiny_llama(tok), tok, warm, noise=0.3)
    tok.chat_template = TEMPLATE
    return GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(**common(per_device_train_batch_size=32)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tok,
    )
