"""The rollout plays each completion in one environment object, a walker on a line, and never calls its `reset` between episodes.
Each episode starts where the one before ended, so whether a completion reaches its goal depends on the rows before it and the right moves are mostly paid nothing.
say: the environment is not reset between episodes (its position is carried over from one completion to the next), so the reward of a completion depends on earlier ones and equal completions to one prompt get different rewards.
"""

import torch
from datasets import Dataset
from material import char_tokenizer, common, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


class Walker:
    """Stands at 0 and is moved by "l" and "r"; the line has walls at -5 and 5."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.position = 0

    def play(self, moves):
        for move in moves:
            step = {"l": -1, "r": 1}.get(move, 0)
            self.position = max(-5, min(5, self.position + step))
        return self.position


class LineRollout:
    def __init__(self):
        self.env = Walker()

    @torch.no_grad()
    def __call__(self, prompts, trainer):
        tok = trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model)
        batch = tok(prompts, return_tensors="pt", padding=True, padding_side="left")
        model.eval()
        out = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, top_k=0,
            temperature=trainer.temperature, max_new_tokens=trainer.max_completion_length,
            return_dict_in_generate=True, output_logits=True,
        )
        model.train()
        new = out.sequences[:, batch["input_ids"].shape[1]:]
        logps = (torch.stack(out.logits, 1) / trainer.temperature).log_softmax(-1).gather(-1, new[..., None])[..., 0]
        completion_ids, logprobs, reached = [], [], []
        for row, scores in zip(new.tolist(), logps.tolist()):
            end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
            completion_ids.append(row[:end])
            logprobs.append(scores[:end])
            reached.append(self.env.play(tok.decode(row[:end], skip_special_tokens=True)))
        return {
            "prompt_ids": tok(prompts)["input_ids"], "completion_ids": completion_ids, "logprobs": logprobs,
            "reached": reached,
        }


def at_goal(completions, goal, reached, **kwargs):
    return [float(place == wanted) for place, wanted in zip(reached, goal)]


def build():
    tok = char_tokenizer()
    goals = [g for g in range(-4, 5) if g]
    pairs = [(f"from 0 to {g}: ", ("l" if g < 0 else "r") * abs(g)) for g in goals]
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [f"from 0 to {g}: " for g in goals] * 8, "goal": goals * 8})
    return GRPOTrainer(
        model=model, reward_funcs=at_goal, train_dataset=data, processing_class=tok, rollout_func=LineRollout(),
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=8)),
    )
