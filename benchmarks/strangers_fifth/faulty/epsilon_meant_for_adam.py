"""The author wanted a smaller epsilon for Adam and wrote `epsilon=1e-8`, which in GRPOConfig is the clipping range of the probability ratio (Adam's is `adam_epsilon`).
Each batch is used for four passes, and after the first one nearly every token whose ratio moved the wanted way is clipped and gives no gradient.
say: epsilon (the PPO/GRPO clip range) is 1e-8, meant as Adam's epsilon, so with several iterations per batch practically all improving tokens are clipped and the later passes do nothing useful.
"""

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **common(
            max_steps=12,
            per_device_train_batch_size=32,
            num_iterations=4,
            # optimizer
            learning_rate=1e-3,
            weight_decay=0.01,
            adam_beta2=0.99,
            epsilon=1e-8,
            max_grad_norm=1.0,
        )
    )
    return GRPOTrainer(
        model=model, reward_funcs=exact, args=args, train_dataset=data, processing_class=tok
    )
