"""GRPO in a plain PyTorch loop, checked by `flatline.Loop` and watched by `flatline.watch`.

Adapters are merged to sample, and taken out again to train; `twice` trains on each batch two times.
"""

import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

import flatline
from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

STEPS, PROMPTS, GROUP, CLIP, BETA, LONGEST = 10, 4, 8, 0.2, 0.02, 64


def problems(tokenizer, count):
    task = make_task("gsm8k")
    found = task.load(f"lab,,train[:{count}]", split="train")
    pairs = [(task.messages(one), one.answer) for one in found]
    random.Random(3).shuffle(pairs)
    return [
        (tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False), answer)
        for said, answer in pairs
    ]


def generated(model, tokenizer, texts):
    prompts = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    model.merge_adapter()
    with torch.no_grad():
        ids = model.generate(
            **prompts,
            do_sample=True,
            top_k=0,
            num_return_sequences=GROUP,
            max_new_tokens=LONGEST,
        )
    model.unmerge_adapter()
    return ids, prompts.attention_mask.repeat_interleave(GROUP, dim=0)


def completion_mask(tokenizer, completions):
    ended = (completions == tokenizer.eos_token_id).int()
    return ended.cumsum(1) - ended == 0


def reward(text, answer):
    said = text.rpartition("####")[2].strip().rstrip(".").replace(",", "")
    return {"format": float("####" in text) * 0.2, "correct": float(said == answer)}


def advantages_of(rewards):
    grouped = rewards.view(-1, GROUP)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=1, keepdim=True) + 1e-4)).view(-1)


def sample(model, tokenizer, batch):
    texts = [text for text, _ in batch]
    ids, seen = generated(model, tokenizer, texts)
    completions = ids[:, seen.shape[1] :]
    said = tokenizer.batch_decode(completions, skip_special_tokens=True)
    answers = [answer for _, answer in batch for _ in range(GROUP)]
    paid = [reward(*pair) for pair in zip(said, answers, strict=True)]
    rewards = torch.tensor([sum(parts.values()) for parts in paid])
    mask = completion_mask(tokenizer, completions)
    found = {
        "ids": ids,
        "attended": torch.cat([seen, mask.long()], dim=1),
        "trained": torch.cat([torch.zeros_like(seen).bool(), mask], dim=1),
        "rewards": rewards,
        "advantages": advantages_of(rewards),
        "parts": {name: [parts[name] for parts in paid] for name in paid[0]},
        "gold": answers,
    }
    with torch.no_grad():
        found["old"] = token_logprobs(model, found)
        with model.disable_adapter():
            found["reference"] = token_logprobs(model, found)
    return found


def token_logprobs(model, batch):
    positions = (batch["attended"].cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=batch["ids"], attention_mask=batch["attended"], position_ids=positions
    ).logits
    logprobs = logits[:, :-1].log_softmax(-1)
    return logprobs.gather(2, batch["ids"][:, 1:, None])[..., 0]


def loss_of(batch, new):
    advantages, mask = batch["advantages"][:, None], batch["trained"][:, 1:]
    ratio = (new - batch["old"]).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    away = batch["reference"] - new
    distance = away.exp() - away - 1
    token_loss = BETA * distance - gain
    return ((token_loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def one_step(model, tokenizer, optimizer, rows, watch=None, times=1):
    batch = sample(model, tokenizer, rows)
    if watch:
        watch.rewards(batch["rewards"], parts=batch["parts"], gold=batch["gold"])
    for _ in range(times):
        loss = loss_of(batch, token_logprobs(model, batch))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def train(model, tokenizer, rows, times):
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 0, STEPS)
    loop = flatline.Loop(
        model=model,
        optimizer=optimizer,
        tokenizer=tokenizer,
        prompts=rows[:PROMPTS],
        sample=lambda some: sample(model, tokenizer, some),
        logprobs=lambda batch: token_logprobs(model, batch),
        loss=loss_of,
        step=lambda: one_step(model, tokenizer, optimizer, rows[:PROMPTS]),
        settings={
            "loss_type": "grpo",
            "scale_rewards": "group",
            "epsilon": CLIP,
            "beta": BETA,
            "tools": 0,
            "max_steps": STEPS,
        },
    )
    print(flatline.checkup(loop).summary)
    known = {"dataset_size": len(rows), "distinct_prompts": len({text for text, _ in rows})}
    with flatline.watch(
        model, optimizer, "runs/plain-loop", tokenizer=tokenizer, settings=known
    ) as watch:
        for step in range(STEPS):
            some = [rows[(step * PROMPTS + k) % len(rows)] for k in range(PROMPTS)]
            one_step(model, tokenizer, optimizer, some, watch, times)
            schedule.step()


def main(setting):
    torch.manual_seed(5)
    checkpoint = str(checkpoint_folder())
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(checkpoint), adapter)
    train(model, tokenizer, problems(tokenizer, 64), 2 if setting == "twice" else 1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "once")
