"""The reward wants an answer of a given number of characters and measures `len(completion)`, but the dataset is conversational and a completion is a list with one message.
The length is 1 for every sample, so all samples of a prompt get the same reward and there is nothing to learn from.
say: the reward measures the length of the message list (always 1) instead of the length of the text in completion[0]["content"], so the reward does not depend on what was generated and the advantages are zero up to rounding.
"""

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def length_reward(completions, length, **kwargs):
    """1 for the wanted length, less the further away."""
    return [max(0.0, 1.0 - abs(len(completion) - wanted) / wanted) for completion, wanted in zip(completions, length)]


def build():
    tok = char_tokenizer(chat=True)
    pairs = []
    for n in range(2, 9):
        for letter in "abcdef":
            pairs.append((f"<|user|>{n} times {letter}<|end|><|assistant|>", letter * n))
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    rows = [(n, letter) for n in range(2, 9) for letter in "abcdef"]
    data = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"{n} times {letter}"}] for n, letter in rows],
        "length": [n for n, _ in rows],
    })
    return GRPOTrainer(
        model=model, reward_funcs=length_reward, train_dataset=data, processing_class=tok,
        args=GRPOConfig(**common(max_completion_length=12)),
    )
