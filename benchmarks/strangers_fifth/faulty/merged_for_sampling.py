"""A subclass merges the LoRA adapter into the base before sampling to make generation faster and never takes it out again.
While an adapter is merged its own matrices are not part of the forward pass, so from the first sampling on they get no gradient and nothing is trained.
say: the LoRA adapter is merged for generation and never unmerged, so the forward pass of the loss bypasses the LoRA weights, they get no gradient and do not change.
"""

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


class FastSamplingTrainer(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        policy = self.accelerator.unwrap_model(self.model)
        policy.merge_adapter()  # one matmul a layer instead of three
        return super()._generate_single_turn(*args, **kwargs)


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return FastSamplingTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(**common(per_device_train_batch_size=32, learning_rate=5e-3)),
        train_dataset=data,
        processing_class=tok,
        peft_config=LoraConfig(
            r=8,
            lora_alpha=16,
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
            target_modules=[
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "up_proj",
                "down_proj",
                "gate_proj",
            ],
        ),
    )
