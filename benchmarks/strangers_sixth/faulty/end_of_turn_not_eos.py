"""The model was fine-tuned on chats whose turns end with <|end|>, but the tokenizer and the generation config it is trained with still name the base's </s> as the end token.
No completion ever stops: each one runs on past its <|end|> to the limit, and with `mask_truncated_completions` all of them are taken out of the loss.
say: the end-of-sequence token is wrong: the model ends its turn with <|end|> while eos is </s>, so generation never stops, every completion counts as truncated and (masked) gives no gradient.
"""

import re

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def first_number(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer):
        found = re.search(r"\d+", completion[0]["content"])
        scores.append(float(found is not None and found.group() == gold))
    return scores


def build():
    tok = char_tokenizer(chat=True)
    tok.eos_token = "</s>"
    pairs = [(f"what is {q[:-1]}?", a) for q, a in sums()]
    chats = []
    for i, (q, a) in enumerate(pairs):
        follow, reply = pairs[(37 * i + 11) % len(pairs)]
        first = tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
        chats.append((first, f"{a}<|end|><|user|>{follow}<|end|><|assistant|>{reply}"))
    model = teach(tiny_llama(tok), tok, chats, noise=0.4, end=tok.convert_tokens_to_ids("<|end|>"))
    data = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": q}] for q, _ in pairs], "answer": [a for _, a in pairs],
    })
    return GRPOTrainer(
        model=model, reward_funcs=first_number, train_dataset=data, processing_class=tok,
        args=GRPOConfig(**common(max_completion_length=12, mask_truncated_completions=True)),
    )
