"""The completions of a batch are judged in a thread pool and the verdicts are collected with `as_completed`, that is in the order in which the judge happened to finish.
Rewards are therefore handed to other completions than those they were given for.
say: the rewards come back in order of completion of the threads (as_completed), not in the order of the completions, so rewards are attributed to the wrong completions.
"""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import RLOOConfig, RLOOTrainer


def judge(text, gold):
    """Stands for a request to a judge; short answers come back sooner."""
    time.sleep(0.002 + 0.006 * len(text))
    return 1.0 if text.strip() == gold else 0.0


def judged(completions, answer, **kwargs):
    with ThreadPoolExecutor(max_workers=8) as pool:
        jobs = [pool.submit(judge, text, gold) for text, gold in zip(completions, answer)]
        return [job.result() for job in as_completed(jobs)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, steps=250, noise=0.3)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return RLOOTrainer(
        model=model,
        reward_funcs=judged,
        args=RLOOConfig(**common(per_device_train_batch_size=32, num_generations=4, beta=0.0)),
        train_dataset=data,
        processing_class=tok,
    )
