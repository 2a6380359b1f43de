"""repetition_penalty=1.5 is set against rambling, but the task is to give back the letters of the prompt, and generate() lowers the
logits of every token that already stands in the prompt. The samples are pushed away from the right answers and do not come from
the distribution whose log-probabilities TRL trains, so the reward is far below what the policy can do and updates are biased.
say: repetition_penalty (not 1.0) penalises at sampling the very tokens that the answer must repeat from the prompt, and the sampling distribution differs from the trained one (the log-probabilities do not contain the penalty).
"""

import random

from datasets import Dataset
from material import char_tokenizer, common, half_right, teach_rows, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def mirrored(completions, answer, **kwargs):
    """1 for the mirrored word, and a quarter of the share of right letters otherwise."""
    scores = []
    for text, gold in zip(completions, answer):
        share = sum(x == y for x, y in zip(text, gold)) / len(gold)
        scores.append(1.0 if text == gold else 0.25 * share)
    return scores


def one_letter_wrong(rng, answer):
    letters = list(answer)
    letters[rng.randrange(len(letters))] = rng.choice("abcdefgh")
    return "".join(letters)


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    rng = random.Random(1)
    words = sorted({"".join(rng.sample("abcdefgh", 3)) for _ in range(150)})
    rng.shuffle(words)
    pairs = [(f"mirror {w}: ", w[::-1]) for w in words]
    teach_rows(model, half_right(tok, pairs, one_letter_wrong, right=0.55), tok.pad_token_id, steps=450)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **common(
            per_device_train_batch_size=64,
            learning_rate=5e-4,
            repetition_penalty=1.5,
            temperature=1.0,
            max_completion_length=8,
            max_steps=10,
        )
    )
    return GRPOTrainer(model, mirrored, args=args, train_dataset=dataset, processing_class=tok)
