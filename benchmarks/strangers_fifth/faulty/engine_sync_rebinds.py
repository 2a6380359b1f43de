"""Rollouts are sampled from a copy of the model that stands for an inference engine, and before each rollout the weights are to be synchronised by a loop over both parameter lists.
The loop assigns to its own loop variable instead of copying into the tensor, so the engine samples from the initial weights for ever.
say: the completions are sampled from a stale copy of the model that is never updated (the weight sync only rebinds a local name), so the samples do not come from the current policy.
"""

import copy

import torch
from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


class Engine:
    def __init__(self, model, tok, max_new_tokens):
        self.net = copy.deepcopy(model).eval()
        self.tok = tok
        self.max_new_tokens = max_new_tokens

    @torch.no_grad()
    def sync(self, model):
        for ours, theirs in zip(self.net.parameters(), model.parameters()):
            ours = theirs.detach().clone()

    @torch.no_grad()
    def sample(self, prompts):
        batch = self.tok(prompts, return_tensors="pt", padding=True)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        out = self.net.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = out.sequences[:, ids.shape[1] :]
        logps = torch.stack(out.logits, 1).log_softmax(-1).gather(-1, new[..., None])[..., 0]
        rows, scores = [], []
        for row, lp in zip(new.tolist(), logps.tolist()):
            end = row.index(self.tok.eos_token_id) + 1 if self.tok.eos_token_id in row else len(row)
            rows.append(row[:end])
            scores.append(lp[:end])
        return [i[m.bool()].tolist() for i, m in zip(ids, mask)], rows, scores


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    engine = Engine(model, tok, max_new_tokens=8)

    def rollout(prompts, trainer):
        engine.sync(trainer.accelerator.unwrap_model(trainer.model))
        prompt_ids, completion_ids, logprobs = engine.sample(prompts)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}

    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(
            **common(
                per_device_train_batch_size=32, learning_rate=2e-3, lr_scheduler_type="constant"
            )
        ),
        train_dataset=data,
        processing_class=tok,
        rollout_func=rollout,
    )
