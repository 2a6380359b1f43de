"""The own rollout function fills env_mask in the sense of another library, 1 for what is to be masked out. The trainer takes 1 for what
the policy wrote: so the tokens of the shopkeeper (the environment) are trained with the advantages, and what the policy itself wrote
has no gradient at all.
say: env_mask is inverted (1 must mark the policy's own tokens, 0 the environment's): the environment's tokens are trained and the policy's own are masked out.
"""

import random

import torch
from datasets import Dataset
from material import base_args, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

GOODS = {"bread": 3, "milk": 4, "cheese": 7, "apples": 5, "honey": 8, "salt": 2}
MOODS = ["kind", "gruff", "busy", "merry"]
PRICES = [str(i) for i in range(1, 10)]


def shopkeeper(offer, good):
    """What he says to an offer, and whether it is a deal."""
    if offer not in PRICES:
        return "what ?", None
    if int(offer) >= GOODS[good] - 1:
        return "deal friend", int(offer)
    return "too little , more please", None


@torch.no_grad()
def next_tokens(model, rows):
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    logits = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[:, -1]
    logp = logits.float().log_softmax(-1)
    token = torch.multinomial(logp.exp(), 1)
    return token.squeeze(1).tolist(), logp.gather(1, token).squeeze(1).tolist()


def haggle(prompts, trainer):
    tok, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    heads = tok(text=prompts)["input_ids"]
    n = len(prompts)
    tails, masks, logps, paid = [[] for _ in range(n)], [[] for _ in range(n)], [[] for _ in range(n)], [None] * n
    for _ in range(3):
        alive = [i for i in range(n) if paid[i] is None]
        if not alive:
            break
        tokens, values = next_tokens(model, [heads[i] + tails[i] for i in alive])
        for i, token, value in zip(alive, tokens, values):
            reply, paid[i] = shopkeeper(tok.convert_ids_to_tokens(token), prompts[i].split()[1])
            reply = tok(reply)["input_ids"]
            tails[i] += [token] + reply
            logps[i] += [value] + [0.0] * len(reply)
            masks[i] += [0] + [1] * len(reply)  # 1: not ours, to be masked
    return {"prompt_ids": heads, "completion_ids": tails, "logprobs": logps, "env_mask": masks, "paid": paid}


def bargain(prompts, paid, **kwargs):
    """The cheaper the better; nothing bought is worth nothing."""
    return [0.0 if p is None else (10 - p) / 10 + 0.1 * GOODS[q.split()[1]] for q, p in zip(prompts, paid)]


def build():
    tok = word_tokenizer(
        "buy from the shopkeeper deal friend too little , more please what ?".split() + list(GOODS) + MOODS + PRICES,
        padding_side="left",
    )
    model = tiny("olmo2", tok, hidden=64)
    rng = random.Random(1)
    prompts = [f"buy {g} from the {m} shopkeeper" for g in GOODS for m in MOODS]
    rows = []
    for prompt in prompts * 25:
        tail, offer = [], rng.randint(1, 8)
        for _ in range(3):
            reply, done = shopkeeper(str(offer), prompt.split()[1])
            tail += tok(f"{offer} {reply}")["input_ids"]
            if done is not None:
                break
            offer = min(9, offer + rng.randint(1, 4))
        rows.append((tok(prompt)["input_ids"], tail))
    teach(model, rows, steps=220, lr=3e-3, pad=tok.pad_token_id)
    rng.shuffle(prompts)
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=20,
            learning_rate=5e-4,
            max_steps=10,
            loss_type="bnpo",
        )
    )
    return GRPOTrainer(
        model, bargain, args=args, train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tok, rollout_func=haggle
    )
