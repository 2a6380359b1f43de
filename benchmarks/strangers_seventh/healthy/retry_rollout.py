"""A rollout function with two tries: the environment answers a wrong first sum with the words `too low` or `too high`
and the model may answer again; the environment's tokens sit inside completion_ids, with env_mask 0 and log-probability
0, so they are read by the model but not trained. Turns end with `;`, and only the last one with the end token."""

import random

import torch
from datasets import Dataset
from material import base_args, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

DIGITS = [str(d) for d in range(10)]
WORDS = DIGITS + ["plus", "is", ";", "too", "low", "high", "right"]


def sample_turn(trainer, contexts, limit):
    """One sampled turn for each context: (token ids, their log-probabilities)."""
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    width = max(len(c) for c in contexts)
    ids = torch.tensor([[tok.pad_token_id] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    stop = tok.convert_tokens_to_ids(";")
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=limit,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            eos_token_id=[stop, tok.eos_token_id],
            pad_token_id=tok.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
    model.train(was_training)
    logits = torch.stack(out.logits, dim=1).float() / trainer.temperature
    new = out.sequences[:, width:]
    logps = logits.log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
    turns = []
    for row, lps in zip(new.tolist(), logps.tolist()):
        ends = [i for i, t in enumerate(row) if t in (stop, tok.eos_token_id)]
        n = ends[0] + 1 if ends else len(row)
        turns.append((row[:n], lps[:n]))
    return turns


def two_tries(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = tok(prompts)["input_ids"]
    ids, logps, mask, first_right = [], [], [], []
    again = []
    for i, (turn, lps) in enumerate(sample_turn(trainer, prompt_ids, limit=4)):
        ids.append(list(turn))
        logps.append(list(lps))
        mask.append([1] * len(turn))
        words = prompts[i].split()
        gold = int(words[0]) + int(words[2])
        text = tok.decode(turn, skip_special_tokens=True).replace(";", "").replace(" ", "")
        right = text.isdigit() and int(text) == gold
        first_right.append(right)
        if turn[-1] == tok.eos_token_id:
            continue  # the model ended the dialogue on its own
        if right:
            said = "right"
        else:
            said = "too low" if not text.isdigit() or int(text) < gold else "too high"
        fed = tok(said)["input_ids"]
        ids[i] += fed
        logps[i] += [0.0] * len(fed)
        mask[i] += [0] * len(fed)
        again.append(i)
    if again:
        turns = sample_turn(trainer, [prompt_ids[i] + ids[i] for i in again], limit=4)
        for i, (turn, lps) in zip(again, turns):
            ids[i] += turn
            logps[i] += lps
            mask[i] += [1] * len(turn)
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logps, "env_mask": mask, "first_right": first_right}


def success(completions, answer, first_right, **kwargs):
    """1 for a right first answer, 0.5 for a right second one."""
    scores = []
    for text, gold, first in zip(completions, answer, first_right):
        if first:
            scores.append(1.0)
            continue
        last = text.split(";")[1] if ";" in text else ""
        last = last.replace("too low", "").replace("too high", "").replace(" ", "")
        scores.append(0.5 if last == gold else 0.0)
    return scores


def lesson(tok, seed=0):
    """Dialogues: a first answer that is right 45 % of the time, then a second one that is right 65 % of the time."""
    rng = random.Random(seed)
    rows = []

    def words(n):
        return " ".join(str(n))

    for a in range(7):
        for b in range(7):
            gold = a + b
            for _ in range(20):
                first = gold if rng.random() < 0.45 else max(0, gold + rng.choice([-2, -1, 1, 2]))
                head = tok(f"{a} plus {b} is")["input_ids"]
                turn = tok(f"{words(first)} ;")["input_ids"]
                rows.append((head, turn))
                said = "right" if first == gold else ("too low" if first < gold else "too high")
                context = head + turn + tok(said)["input_ids"]
                if first == gold:
                    rows.append((context, [tok.eos_token_id]))
                else:
                    near = [first + d for d in (1, 2, 3)] if first < gold else [first - d for d in (1, 2, 3)]
                    second = gold if rng.random() < 0.65 else max(0, rng.choice(near))
                    rows.append((context, tok(words(second))["input_ids"] + [tok.eos_token_id]))
    return rows


def build():
    tok = word_tokenizer(WORDS, padding_side="left")
    model = tiny("llama", tok, hidden=96)
    teach(model, lesson(tok), steps=500, lr=2e-3, pad=tok.pad_token_id)
    pairs = [(a, b) for a in range(7) for b in range(7)]
    random.Random(1).shuffle(pairs)
    dataset = Dataset.from_dict(
        {
            "prompt": [f"{a} plus {b} is" for a, b in pairs],
            "answer": [str(a + b) for a, b in pairs],
        }
    )
    args = GRPOConfig(
        **base_args(
            loss_type="grpo",
            per_device_train_batch_size=48,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=16,
            learning_rate=8e-4,
            max_steps=10,
            seed=21,
        )
    )
    return GRPOTrainer(
        model, success, args=args, train_dataset=dataset, processing_class=tok, rollout_func=two_tries
    )
