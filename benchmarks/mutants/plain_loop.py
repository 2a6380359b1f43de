"""GRPO in a plain PyTorch loop, watched by `flatline.watch`; adapters are merged to sample."""

import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

import flatline
from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

STEPS, PROMPTS, GROUP, CLIP, BETA, LONGEST = 12, 4, 8, 0.2, 0.02, 64


def problems(tokenizer, count):
    task = make_task("gsm8k")
    found = task.load(f"lab,,train[:{count}]", split="train")
    pairs = [(task.messages(one), one.answer) for one in found]
    random.Random(3).shuffle(pairs)
    return [
        (tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False), answer)
        for said, answer in pairs
    ]


def sampled(model, tokenizer, texts):
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
    seen = prompts.attention_mask.repeat_interleave(GROUP, dim=0)
    return ids, seen


def completion_mask(tokenizer, completions):
    ended = (completions == tokenizer.eos_token_id).int()
    return ended.cumsum(1) - ended == 0


def reward(text, answer):
    said = text.rpartition("####")[2].strip().rstrip(".").replace(",", "")
    return float("####" in text) * 0.2 + float(said == answer)


def advantages_of(rewards):
    grouped = rewards.view(-1, GROUP)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=1, keepdim=True) + 1e-4)).view(-1)


def token_logprobs(model, ids, seen, completions):
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=seen, position_ids=positions).logits
    kept = completions.shape[1]
    logprobs = logits[:, -kept - 1 : -1].log_softmax(-1)
    return logprobs.gather(2, completions[..., None])[..., 0]


def loss_of(new, old, reference, advantages, mask):
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    away = reference - new
    distance = away.exp() - away - 1
    token_loss = BETA * distance - gain
    return ((token_loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def train(model, tokenizer, rows, folder):
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    with flatline.watch(model, optimizer, folder, tokenizer=tokenizer) as watch:
        for step in range(STEPS):
            batch = [rows[(step * PROMPTS + k) % len(rows)] for k in range(PROMPTS)]
            texts = [text for text, _ in batch]
            ids, seen = sampled(model, tokenizer, texts)
            completions = ids[:, seen.shape[1] :]
            said = tokenizer.batch_decode(completions, skip_special_tokens=True)
            answers = [answer for _, answer in batch for _ in range(GROUP)]
            rewards = torch.tensor([reward(*pair) for pair in zip(said, answers, strict=True)])
            watch.rewards(rewards)
            mask = completion_mask(tokenizer, completions)
            whole = torch.cat([seen, mask.long()], dim=1)
            with torch.no_grad():
                old = token_logprobs(model, ids, whole, completions)
                with model.disable_adapter():
                    reference = token_logprobs(model, ids, whole, completions)
            new = token_logprobs(model, ids, whole, completions)
            loss = loss_of(new, old, reference, advantages_of(rewards), mask)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(step, float(rewards.mean()))


def main(folder):
    torch.manual_seed(5)
    checkpoint = str(checkpoint_folder())
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(checkpoint), adapter)
    train(model, tokenizer, problems(tokenizer, 64), folder)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/plain-loop")
