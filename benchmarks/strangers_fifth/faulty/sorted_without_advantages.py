"""A subclass sorts the scored batch by completion length so that rows of like length share a micro-batch, and sorts the ids and the masks but not the advantages.
From then on every completion is trained with the advantage of another one.
say: the rows of the batch are reordered (sorted by length) but the advantages are left in the old order, so advantages belong to other completions.
"""

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer

WORDS = ["sun", "moon", "tree", "a", "river", "cat", "stone", "be", "lamp", "garden", "ox", "milk"]


class BucketedTrainer(GRPOTrainer):
    """Puts completions of like length next to each other."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        order = batch["completion_mask"].sum(dim=1).argsort(stable=True)
        for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"):
            batch[key] = batch[key][order]
        return batch


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = [(f"last of {' '.join([u, v])}: ", v) for u in WORDS for v in WORDS]
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return BucketedTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(**common(gradient_accumulation_steps=2)),
        train_dataset=data,
        processing_class=tok,
    )
