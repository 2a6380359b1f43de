"""The tokenizer pads with its end token and a subclass rebuilds the completion mask as "every token that is not padding".
The end token of every completion falls out of the mask with the padding, so when to stop is never trained, and stopping in time is what the reward is about.
say: the end-of-sequence token is masked out of the loss (the mask is completion_ids != pad_token_id while pad equals eos), so the model gets no gradient for ending.
"""

import re

from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


class CleanMaskTrainer(GRPOTrainer):
    """Keeps padding out of the loss."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = (batch["completion_ids"] != self.processing_class.pad_token_id).long()
        batch["completion_mask"] = mask
        batch["num_items_in_batch"] = mask.sum()
        return batch


def right_count(completions, count, **kwargs):
    """The letter as often as asked, then stop."""
    return [
        1.0 - min(1.0, abs(len(re.findall("a", text)) - n) / 3)
        for text, n in zip(completions, count)
    ]


def build():
    tok = char_tokenizer(pad="</s>", eos="</s>")
    pairs = [(f"write {n} times {c}: ", c * n) for n in range(1, 7) for c in "a"]
    model = teach(tiny_llama(tok), tok, pairs, steps=120, noise=0.6)
    data = Dataset.from_dict(
        {"prompt": [q for q, _ in pairs] * 10, "count": [len(a) for _, a in pairs] * 10}
    )
    return CleanMaskTrainer(
        model=model,
        reward_funcs=right_count,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=12)),
        train_dataset=data,
        processing_class=tok,
    )
