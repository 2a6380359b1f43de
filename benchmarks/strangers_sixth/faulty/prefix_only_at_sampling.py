"""The rollout function puts three solved examples before the question when it samples, but returns the ids of the bare question as `prompt_ids`.
The loss computes the log-probs of the completions after a prompt they were not sampled from, so the gradient is that of another policy than the one that is rewarded.
say: the prompt_ids returned by rollout_func lack the few-shot prefix used for sampling, so the log-probs in the loss are conditioned on another context than the one the completions were generated from (off-policy mismatch).
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer

EXAMPLES = "1+2=3\n4+4=8\n9+3=12\n"


@torch.no_grad()
def few_shot_rollout(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    batch = tok([EXAMPLES + p for p in prompts], return_tensors="pt", padding=True, padding_side="left")
    model.eval()
    out = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, top_k=0,
        temperature=trainer.temperature, max_new_tokens=trainer.max_completion_length,
        return_dict_in_generate=True, output_logits=True,
    )
    model.train()
    new = out.sequences[:, batch["input_ids"].shape[1]:]
    logps = (torch.stack(out.logits, 1) / trainer.temperature).log_softmax(-1).gather(-1, new[..., None])[..., 0]
    completion_ids, logprobs = [], []
    for row, scores in zip(new.tolist(), logps.tolist()):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        completion_ids.append(row[:end])
        logprobs.append(scores[:end])
    return {
        "prompt_ids": tok(prompts)["input_ids"],
        "completion_ids": completion_ids,
        "logprobs": logprobs,
    }


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, [(EXAMPLES + q, a) for q, a in pairs], noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok, rollout_func=few_shot_rollout,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=4)),
    )
