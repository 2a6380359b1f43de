"""A guessing game of up to three turns, played in an own rollout_func.

Particular: the rollout samples by itself and interleaves the game's feedback tokens with the model's; those are marked
0 in env_mask and 0.0 in the log-probabilities; an episode ends when the number is found, so completions differ in
length and never end in EOS; the reward falls with the number of turns and comes from a field the rollout returns.
"""

import random

import torch
from datasets import Dataset
from material import base_args, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

NUMBERS = [str(n) for n in range(1, 10)]
SECRETS = {f"riddle {k} : guess": random.Random(k).randint(1, 9) for k in range(40)}
TURNS = 3


def feedback(guess, secret):
    if guess not in NUMBERS:
        return "what"
    return "right" if int(guess) == secret else "higher" if int(guess) < secret else "lower"


@torch.no_grad()
def play(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    prompt_ids = tok(text=prompts)["input_ids"]  # all riddles have the same number of tokens
    assert len({len(p) for p in prompt_ids}) == 1
    rows = [list(p) for p in prompt_ids]
    n = len(rows)
    completion, logprobs, mask, turns = (
        [[] for _ in rows],
        [[] for _ in rows],
        [[] for _ in rows],
        [0] * n,
    )
    alive = list(range(n))
    for turn in range(TURNS):
        logits = model(input_ids=torch.tensor([rows[i] for i in alive])).logits[:, -1].float()
        logp = torch.log_softmax(logits / trainer.temperature, dim=-1)
        picked = torch.multinomial(logp.exp(), 1).squeeze(1)
        still = []
        for j, i in enumerate(alive):
            token = int(picked[j])
            word = feedback(tok.decode([token]).strip(), SECRETS[prompts[i]])
            rows[i].append(token)
            completion[i].append(token)
            logprobs[i].append(float(logp[j, token]))
            mask[i].append(1)
            if word == "right":
                turns[i] = turn + 1
                continue
            if turn < TURNS - 1:
                reply = tok.convert_tokens_to_ids(word)
                rows[i].append(reply)
                completion[i].append(reply)
                logprobs[i].append(0.0)
                mask[i].append(0)
                still.append(i)
        alive = still
        if not alive:
            break
    model.train(was_training)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion,
        "logprobs": logprobs,
        "env_mask": mask,
        "turns": turns,
    }


def quick_win(completions, turns, **kwargs):
    """1.0, 0.8, 0.6 for a win in one, two, three turns; 0 for none."""
    return [1.2 - 0.2 * t if t else 0.0 for t in turns]


def build():
    rng = random.Random(3)
    tok = word_tokenizer(" ".join(SECRETS).split() + NUMBERS + ["higher", "lower", "what"])
    model = tiny("granite", tok, hidden=64, initializer_range=0.05)
    # teaching: players who mostly go in the direction they were told
    lessons = []
    for _ in range(2500):
        prompt = rng.choice(list(SECRETS))
        secret = rng.randint(1, 9)
        row = tok(text=[prompt])["input_ids"][0]
        low, high = 1, 9
        for _ in range(TURNS):
            guess = rng.randint(low, high) if rng.random() < 0.7 else rng.randint(1, 9)
            token = tok.convert_tokens_to_ids(str(guess))
            lessons.append((list(row), [token]))
            word = feedback(str(guess), secret)
            if word == "right":
                break
            low, high = (
                (max(low, guess + 1), high) if word == "higher" else (low, min(high, guess - 1))
            )
            if low > high:
                break
            row = row + [token, tok.convert_tokens_to_ids(word)]
    teach(model, lessons, steps=250, lr=2e-3, pad=tok.pad_token_id, batch=64)

    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=16,
        max_completion_length=2 * TURNS,
        max_steps=12,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        loss_type="grpo",
        seed=10,
    )
    # few riddles that come back: the numbers can be learned
    few = list(SECRETS)[:8]
    return GRPOTrainer(
        model=model,
        processing_class=tok,
        reward_funcs=quick_win,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": few}),
        rollout_func=play,
    )


if __name__ == "__main__":
    build().train()
