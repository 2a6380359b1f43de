"""The model is loaded from the folder of the raw base and the fine-tuned weights are then put into it with `load_state_dict`; the trainer builds its reference from the folder named in the config.
The KL term therefore pulls the policy towards the untaught base instead of towards the model that training started from.
say: the reference model is not the initial policy: it was loaded from the base checkpoint without the fine-tuned weights, so the KL is large from the first step and pulls the policy back to the base.
"""

import tempfile

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def fine_tuned_weights(folder, tok, pairs):
    """What an earlier supervised stage left behind."""
    return teach(AutoModelForCausalLM.from_pretrained(folder), tok, pairs, noise=0.3).state_dict()


def build():
    tok = char_tokenizer()
    pairs = sums()
    base = tempfile.mkdtemp()
    tiny_llama(tok).save_pretrained(base)
    tok.save_pretrained(base)
    weights = fine_tuned_weights(base, tok, pairs)

    model = AutoModelForCausalLM.from_pretrained(base)
    model.load_state_dict(weights)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(**common(per_device_train_batch_size=32, beta=0.2)),
        train_dataset=data,
        processing_class=tok,
    )
