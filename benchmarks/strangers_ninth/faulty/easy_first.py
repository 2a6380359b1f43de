"""A curriculum from easy to hard: the sampler is overridden so that the rows come in the order of the file. The trainer's own sampler repeats each prompt num_generations times in a row; the
plain sequential one does not. So every "group" of eight consists of eight different prompts with one answer each, and the advantage
compares the answer to one question with the answers to seven others: an easy question gets a positive advantage, a hard one a negative.
say: The sampler does not repeat the prompts, so the groups mix different prompts (one completion each) and the group baseline compares different questions.
"""

from datasets import Dataset
from material import base_args, char_tokenizer, half_right, teach, tiny
from torch.utils.data import SequentialSampler
from trl import GRPOConfig, GRPOTrainer


class EasyFirst(GRPOTrainer):
    """Rows in the order of the data set, which is sorted by difficulty."""

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)


def product_right(completions, product, **kwargs):
    out = []
    for text, gold in zip(completions, product):
        if text == gold:
            out.append(1.0)
        elif text.isdigit() and text[-1] == gold[-1]:
            out.append(0.2)
        else:
            out.append(0.0)
    return out


def miscounted(rng, answer):
    return str(max(0, int(answer) + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10))))


def build():
    tok = char_tokenizer("0123456789x=", padding_side="left")
    model = tiny("llama", tok, hidden=64, seed=33)
    table = [(a, b) for a in range(2, 30) for b in range(2, 10)]
    pairs = [(f"{a}x{b}=", str(a * b)) for a, b in table]
    teach(model, half_right(tok, pairs, miscounted, right=0.6, copies=8), steps=450, lr=4e-3, pad=tok.pad_token_id)
    order = sorted(table, key=lambda ab: (ab[0] * ab[1], ab))
    data = Dataset.from_dict(
        {"prompt": [f"{a}x{b}=" for a, b in order], "product": [str(a * b) for a, b in order]}
    )
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=5,
            learning_rate=6e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            max_steps=12,
            seed=33,
        )
    )
    return EasyFirst(model, product_right, args=args, train_dataset=data, processing_class=tok)
