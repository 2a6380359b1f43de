"""Draft, criticism, revision: an own rollout_func of two turns in which the end token stands in the middle too.

Particular: the rollout uses model.generate for both turns with left padding; the draft's end token and the critic's words
(masked) lie inside the completion; a draft that is right at once ends the episode after one turn; the reward is the final
quality plus half of the improvement over the draft (so it may be negative); Phi-3 (fused projections); grouped "batch"
scaling, accumulation of 2.
"""

import random

import torch
from datasets import Dataset
from material import base_args, encode, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

LETTERS = list("abcdefghij")


def quality(said, gold):
    """The share of places with the right letter; a wrong length costs."""
    return sum(a == b for a, b in zip(said, gold)) / len(gold) - 0.1 * abs(len(said) - len(gold))


def critic(said, gold):
    right = sum(a == b for a, b in zip(said, gold))
    return f"critic : {right} right . again :".split()


def generate(model, tok, contexts, temperature, most):
    """Sampled continuations (up to and with the end token) and their log-probabilities."""
    width = max(map(len, contexts))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
            max_new_tokens=most, pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    new = out.sequences[:, width:]
    logps = torch.stack([torch.log_softmax(step.float() / temperature, -1) for step in out.logits], 1)
    logps = logps.gather(-1, new.unsqueeze(-1)).squeeze(-1)
    texts, values = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        texts.append(row[:end])
        values.append(lp[:end])
    return texts, values


def two_turns(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    heads = tok(text=prompts)["input_ids"]
    gold = [sorted(p.split()[1:-1]) for p in prompts]

    def words(ids):
        return tok.decode(ids, skip_special_tokens=True).split()

    draft, draft_lp = generate(model, tok, heads, trainer.temperature, 6)
    completion, logprobs = [list(d) for d in draft], [list(v) for v in draft_lp]
    mask = [[1] * len(d) for d in draft]
    first = [quality(words(d), g) for d, g in zip(draft, gold)]
    last = list(first)
    again = [i for i, q in enumerate(first) if q < 1.0]
    if again:
        for i in again:
            said = tok.convert_tokens_to_ids(critic(words(draft[i]), gold[i]))
            completion[i] += said
            logprobs[i] += [0.0] * len(said)
            mask[i] += [0] * len(said)
        revised, revised_lp = generate(model, tok, [heads[i] + completion[i] for i in again], trainer.temperature, 6)
        for i, new, lp in zip(again, revised, revised_lp):
            completion[i] += new
            logprobs[i] += lp
            mask[i] += [1] * len(new)
            last[i] = quality(words(new), gold[i])
    model.train(was_training)
    return {
        "prompt_ids": heads,
        "completion_ids": completion,
        "logprobs": logprobs,
        "env_mask": mask,
        "first": first,
        "last": last,
    }


def revision(completions, first, last, **kwargs):
    return [b + 0.5 * (b - a) for a, b in zip(first, last)]


def build():
    rng = random.Random(70)
    tok = word_tokenizer(LETTERS + ["sort", "critic", ":", "right", ".", "again", "="] + list("01234"))
    model = tiny("phi3", tok, hidden=64, layers=2, initializer_range=0.05)

    def fuzzy(letters, noise):
        letters = sorted(letters)
        if rng.random() < noise:
            i, j = rng.sample(range(len(letters)), 2)
            letters[i], letters[j] = letters[j], letters[i]
        if rng.random() < noise / 3:
            letters.append(rng.choice(LETTERS))
        return letters

    lessons = []
    for _ in range(2500):
        letters = rng.sample(LETTERS, rng.choice([3, 4]))
        head, tail = encode(tok, f"sort {' '.join(letters)} =", " ".join(fuzzy(letters, 0.7)))
        lessons.append((head, tail))
        heard = tok.convert_tokens_to_ids(critic(tok.decode(tail, skip_special_tokens=True).split(), sorted(letters)))
        second = tok.convert_tokens_to_ids(fuzzy(letters, 0.55)) + [tok.eos_token_id]
        lessons.append((head + tail + heard, second))
    teach(model, lessons, steps=320, lr=3e-3, pad=tok.pad_token_id, batch=48)

    prompts = [f"sort {' '.join(rng.sample(LETTERS, rng.choice([3, 4])))} =" for _ in range(64)]
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        max_steps=10,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        scale_rewards="batch",
        seed=72,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=revision,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        rollout_func=two_turns,
    )


if __name__ == "__main__":
    build().train()
