"""The verifier is slow, so the reward remembers verdicts in a dictionary whose key is the completion's text alone.
The verdict for "7" on the first question that met it is then handed to "7" on every other question.
say: the reward caches its verdict by the completion text without the question or gold answer, so later rows get the verdict of another question (the same completion scores the same whatever the answer column says).
"""

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer

_verdicts = {}


def verify(text, gold):
    """Stands for a call to an outside checker."""
    return float(text.strip() == gold)


def correct(completions, answer, **kwargs):
    scores = []
    for text, gold in zip(completions, answer):
        if text not in _verdicts:
            _verdicts[text] = verify(text, gold)
        scores.append(_verdicts[text])
    return scores


def build():
    _verdicts.clear()
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model,
        reward_funcs=correct,
        args=GRPOConfig(**common(per_device_train_batch_size=32)),
        train_dataset=data,
        processing_class=tok,
    )
