"""The rollout has two turns: the model names a drawer, the environment shows what lies in it, the model repeats what it saw; the author reads `env_mask` as "1 where the environment wrote".
The trainer wants 1 on the model's own tokens, so the loss is taken over the environment's text and none of the model's tokens is trained.
say: env_mask is inverted: it is 1 on the tokens inserted by the environment and 0 on the model's own tokens, so the loss trains the environment text instead of the model's actions.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer

DRAWERS = {"a": "key", "b": "pen", "c": "cup", "d": "map"}


def sample_turn(model, tok, contexts, max_new_tokens):
    """One turn for each context of ids: new ids and their log-probs."""
    width = max(map(len, contexts))
    ids = torch.tensor([[tok.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_new_tokens,
        return_dict_in_generate=True,
        output_logits=True,
    )
    new = out.sequences[:, width:]
    logps = torch.stack(out.logits, 1).log_softmax(-1).gather(-1, new[..., None])[..., 0]
    rows, scores = [], []
    for row, lp in zip(new.tolist(), logps.tolist()):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        rows.append(row[:end])
        scores.append(lp[:end])
    return rows, scores


@torch.no_grad()
def rollout(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    prompt_ids = [tok(p)["input_ids"] for p in prompts]
    first, first_lp = sample_turn(model, tok, prompt_ids, 2)
    seen = []
    for turn in first:
        drawer = tok.decode(turn, skip_special_tokens=True).strip()
        seen.append(tok(f"({DRAWERS.get(drawer, 'empty')})")["input_ids"])
    second, second_lp = sample_turn(
        model, tok, [p + f + s for p, f, s in zip(prompt_ids, first, seen)], 6
    )
    model.train(was_training)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [f + s + t for f, s, t in zip(first, seen, second)],
        "logprobs": [f + [0.0] * len(s) + t for f, s, t in zip(first_lp, seen, second_lp)],
        "env_mask": [
            [0] * len(f) + [1] * len(s) + [0] * len(t) for f, s, t in zip(first, seen, second)
        ],
    }


def found(completions, item, **kwargs):
    """The right thing was found and reported after the drawer was opened."""
    return [
        0.5 * (f"({x})" in text) + 0.5 * text.endswith(f"){x}")
        for text, x in zip(completions, item)
    ]


def build():
    tok = char_tokenizer()
    pairs = []
    for drawer, item in DRAWERS.items():
        pairs.append((f"find {item}: ", drawer))
        pairs.append((f"find {item}: {drawer}{tok.eos_token}({item})", item))
        pairs.append((f"find {item}: q{tok.eos_token}(empty)", "none"))
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    items = [item for item in DRAWERS.values()] * 20
    data = Dataset.from_dict({"prompt": [f"find {item}: " for item in items], "item": items})
    return GRPOTrainer(
        model=model,
        reward_funcs=found,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=24)),
        train_dataset=data,
        processing_class=tok,
        rollout_func=rollout,
    )
