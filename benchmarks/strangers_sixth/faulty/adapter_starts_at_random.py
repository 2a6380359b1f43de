"""The LoRA config has `init_lora_weights=False`, which the author took for "leave the base weights as they are" and which makes both LoRA matrices random.
The adapter is not zero at the start, so the fine-tuned model's behaviour is broken before the first step and the reference (adapter switched off) is not the policy that training starts from.
say: init_lora_weights=False gives LoRA B a random instead of a zero start, so the adapter destroys the fine-tuned model from the first step (the policy at step 0 is not the base; KL to the reference is large at once).
"""

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.3)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    adapter = LoraConfig(
        task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False,
    )
    return GRPOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok, peft_config=adapter,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=4, beta=0.02)),
    )
