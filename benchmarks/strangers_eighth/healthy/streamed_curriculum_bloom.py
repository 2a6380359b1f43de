"""A streamed dataset (generator, not shuffled) whose words get longer and longer: a curriculum, so the reward is meant to stay
about level or to fall while the tasks harden. BLOOM (ALiBi positions), DAPO's asymmetric clipping with num_iterations=2, soft
overlong punishment in the reward (negative), truncated completions masked out of the loss."""

import random

from datasets import IterableDataset
from material import base_args, char_tokenizer, half_right, set_seed, teach
from transformers import BloomConfig, BloomForCausalLM
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdefg"


def tasks(low, high, count, seed):
    rng = random.Random(seed)
    for i in range(count):
        n = low + (high - low + 1) * i // count
        word = "".join(rng.choice(LETTERS) for _ in range(n))
        yield {"prompt": f"sort {word}>", "answer": "".join(sorted(word))}


def sorted_right(completions, answer, **kwargs):
    """1 for the sorted word; otherwise half the share of right places."""
    out = []
    for text, gold in zip(completions, answer):
        share = sum(x == y for x, y in zip(text, gold)) / len(gold)
        out.append(1.0 if text == gold else 0.5 * share)
    return out


def overlong(completion_ids, **kwargs):
    """0 up to 9 tokens, then linearly down to -1 at 12."""
    return [-max(0, len(ids) - 9) / 3 for ids in completion_ids]


def wrong(rng, answer):
    letters = list(answer)
    i = rng.randrange(len(letters))
    if rng.random() < 0.5:
        letters[i] = rng.choice(LETTERS)
    else:
        letters.insert(i, rng.choice(LETTERS))
    return "".join(letters)


def build():
    tok = char_tokenizer(LETTERS + "sort >", padding_side="left")
    set_seed(0)
    model = BloomForCausalLM(
        BloomConfig(
            vocab_size=len(tok), hidden_size=64, n_layer=2, n_head=4,
            bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
        )
    )
    pairs = [(x["prompt"], x["answer"]) for x in tasks(2, 6, 1500, seed=11)]
    teach(model, half_right(tok, pairs, wrong, right=0.7, copies=3), steps=420, lr=3e-3, pad=tok.pad_token_id)
    stream = IterableDataset.from_generator(tasks, gen_kwargs={"low": 2, "high": 5, "count": 32, "seed": 12})
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=40,
            num_generations=8,
            num_iterations=2,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            mask_truncated_completions=True,
            max_completion_length=12,
            shuffle_dataset=False,
            learning_rate=3e-4,
            max_grad_norm=0.5,
            max_steps=12,
            seed=9,
        )
    )
    return GRPOTrainer(model, [sorted_right, overlong], args=args, train_dataset=stream, processing_class=tok)
