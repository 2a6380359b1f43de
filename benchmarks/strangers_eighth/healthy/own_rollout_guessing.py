"""An own rollout function: the policy guesses a number from 1 to 16, the host answers `more` or `less` or `yes`, the policy guesses
again, at most three times. Sampling is a plain loop over the policy with the same temperature as the trainer's (0.8, without
top-k or top-p), the host's tokens carry env_mask 0, and the log-probabilities at sampling time are handed back. The number of
completions is as asked for: one for every prompt in the already repeated list. VESPO loss."""

import random

import torch
from datasets import Dataset
from material import base_args, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

NUMBERS = [str(i) for i in range(1, 17)]
TURNS = 3


def host(guess, gold):
    if guess not in NUMBERS:
        return "pardon"
    return "yes" if int(guess) == gold else "more" if int(guess) < gold else "less"


@torch.no_grad()
def draw(model, ids, temperature):
    """One token for every row of a list of unequal rows, with its log-probability."""
    width = max(map(len, ids))
    batch = torch.tensor([[0] * (width - len(r)) + r for r in ids])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in ids])
    position = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=batch, attention_mask=mask, position_ids=position).logits[:, -1].float() / temperature
    logp = logits.log_softmax(-1)
    token = torch.multinomial(logp.exp(), 1)
    return token.squeeze(1).tolist(), logp.gather(1, token).squeeze(1).tolist()


def play(prompts, trainer):
    tok, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    training = model.training
    model.eval()
    secret = [trainer.secrets[p] for p in prompts]
    heads = tok(text=prompts)["input_ids"]
    done, tails, masks, logps = [False] * len(prompts), [[] for _ in prompts], [[] for _ in prompts], [[] for _ in prompts]
    guesses = [0] * len(prompts)
    for _ in range(TURNS):
        alive = [i for i in range(len(prompts)) if not done[i]]
        if not alive:
            break
        tokens, values = draw(model, [heads[i] + tails[i] for i in alive], trainer.temperature)
        for i, token, value in zip(alive, tokens, values):
            tails[i].append(token)
            masks[i].append(1)
            logps[i].append(value)
            guesses[i] += 1
            said = host(tok.convert_ids_to_tokens(token), secret[i])
            for extra in tok(said)["input_ids"] + ([tok.eos_token_id] if said == "yes" else []):
                tails[i].append(extra)
                masks[i].append(0)
                logps[i].append(0.0)
            done[i] = said == "yes"
    model.train(training)
    return {
        "prompt_ids": heads, "completion_ids": tails, "logprobs": logps, "env_mask": masks,
        "guesses": guesses, "found": done,
    }


def quick(found, guesses, **kwargs):
    """1, 0.7 or 0.4 for finding it at the first, second or third guess, and -0.2 for not finding it."""
    return [1.3 - 0.3 * g if f else -0.2 for f, g in zip(found, guesses)]


def build():
    tok = word_tokenizer("guess near from player more less yes pardon".split() + NUMBERS + list("abcdefgh"), padding_side="left")
    model = tiny("stablelm", tok, hidden=64)
    rng = random.Random(0)
    secrets = {f"player {x} guess near {n} from": n for x in "abcdefgh" for n in range(1, 17)}
    rows = []
    for prompt, near in list(secrets.items()) * 6:
        gold = min(16, max(1, near + rng.choice([0, 0, -1, 1, 2, -2])))
        low, high, tail = 1, 16, []
        for _ in range(TURNS):
            x = rng.randint(low, high) if rng.random() < 0.4 else min(high, max(low, near))
            said = host(str(x), gold)
            tail += tok(f"{x} {said}")["input_ids"]
            if said == "yes":
                tail.append(tok.eos_token_id)
                break
            low, high = (x + 1, high) if said == "more" else (low, x - 1)
            if low > high:
                break
        rows.append((tok(prompt)["input_ids"], tail))
    teach(model, rows, steps=250, lr=3e-3, pad=tok.pad_token_id)
    prompts = list(secrets)
    rng.shuffle(prompts)
    args = GRPOConfig(
        **base_args(
            loss_type="vespo",
            temperature=0.8,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=8,
            learning_rate=5e-4,
            max_steps=10,
            seed=6,
        )
    )
    trainer = GRPOTrainer(
        model, quick, args=args, train_dataset=Dataset.from_dict({"prompt": prompts}), processing_class=tok, rollout_func=play
    )
    trainer.secrets = secrets
    return trainer
