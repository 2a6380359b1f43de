"""The policy is loaded from the base checkpoint's directory and then gets the SFT weights by load_state_dict, so its config still
names the base directory, and TRL loads the KL reference from there. The reference is the model before SFT: the KL is large from
the first step and, with beta 0.5, pulls the policy back to the base model, which cannot do the task.
say: the reference model is loaded from the path in the model's config (the base checkpoint), not from the SFT weights that were loaded with load_state_dict, so the KL is taken to the wrong (pre-SFT) model and is large already at step 1.
"""

import os
import tempfile

import torch
from datasets import Dataset
from material import char_tokenizer, common, half_right, on_disk, one_letter_wrong, teach_rows, tiny_llama, words
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer


def shifted(word):
    return "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in word)


def exact(completions, answer, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, answer)]


def checkpoints(tok, pairs):
    """(directory of the base model, file with the SFT weights)."""
    model = tiny_llama(tok, hidden=96)
    copying = [(prompt, prompt.split()[1].rstrip(":")) for prompt, _ in pairs]  # pre-training: echoes words
    teach_rows(model, half_right(tok, copying, one_letter_wrong, right=0.5), tok.pad_token_id, steps=150)
    base = on_disk(model, tok)
    teach_rows(model, half_right(tok, pairs, one_letter_wrong, right=0.5), tok.pad_token_id, steps=350, seed=1)
    weights = os.path.join(tempfile.mkdtemp(), "sft.pt")
    torch.save(model.state_dict(), weights)
    return base, weights


def build():
    tok = char_tokenizer()
    pairs = [(f"encode {w}: ", shifted(w)) for w in words(120, seed=7)]
    base, weights = checkpoints(tok, pairs)
    policy = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    policy.load_state_dict(torch.load(weights))
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})
    args = GRPOConfig(
        **common(per_device_train_batch_size=64, learning_rate=5e-4, beta=0.5, max_completion_length=6, max_steps=12)
    )
    return GRPOTrainer(policy, exact, args=args, train_dataset=dataset, processing_class=tok)
