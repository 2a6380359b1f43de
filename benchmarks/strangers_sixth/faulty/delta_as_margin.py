"""`delta=0.2` was set as a margin next to epsilon, but in GRPOConfig it is the upper bound of the ratio itself in two-sided clipping and has to lie above 1 + epsilon.
The ratio of about 1 is cut to the constant 0.2 for every token with a positive advantage, so good completions give no gradient and only bad ones are pushed down.
say: delta=0.2 clamps the probability ratio (about 1) to at most 0.2, so tokens with a positive advantage get no gradient; delta must be above 1 + epsilon.
"""

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok,
        args=GRPOConfig(**common(
            per_device_train_batch_size=32, max_completion_length=4, epsilon=0.2, epsilon_high=0.28, delta=0.2,
        )),
    )
