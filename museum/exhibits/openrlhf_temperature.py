"""The actor takes log-probs of undivided logits, whatever temperature its rollouts were sampled
at. Ratios and gradients are those of another policy than the one that sampled.
"""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from museum import lab
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.6.1.post1",
    good="0.6.2",
    stands_in="vLLM; the trainer around the actor, which needs Ray, is a loop in the exhibit",
    lines="openrlhf/models/actor.py:221, :240",
    expects=("H21", "H54"),
)
TEMPERATURE = 1.3
"""Above 1: the lab policy is sure of most tokens, and those that it is sure of show nothing."""
STEPS = 4
PROMPTS, GROUP = 8, 4


def run(folder: Path) -> dict[str, Any]:
    import flatline

    settings = {"num_generations": GROUP, "temperature": TEMPERATURE}
    with flatline.Recorder(folder / "run", settings=settings) as recorder:
        _train(recorder)
    return {"diagnose": flatline.diagnose(flatline.Trace.open(folder / "run"))}


def _train(recorder: Any) -> None:
    import torch
    import vllm

    _without_kernels()
    from openrlhf.models import Actor, PolicyLoss

    model, tokenizer = lab.parts()
    actor = Actor(model.name_or_path, bf16=False, temperature=TEMPERATURE).train()
    model, loss = actor.model, PolicyLoss()
    engine = vllm.LLM(model.name_or_path)
    params = vllm.SamplingParams(n=GROUP, temperature=TEMPERATURE, max_tokens=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    rows = lab.rows()
    for step in range(1, STEPS + 1):
        asked = rows[(step - 1) * PROMPTS : step * PROMPTS]
        chat = [
            tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True)
            for r in asked
        ]
        engine.drawn.clear()
        engine.generate(chat, params)
        texts = [
            [{"content": tokenizer.decode(ids, skip_special_tokens=True)}]
            for _, ids, _ in engine.drawn
        ]
        names = [r["problem_id"] for r in asked for _ in range(GROUP)]
        reward_B = torch.tensor(lab.right(texts, names))
        centred = reward_B - reward_B.view(-1, GROUP).mean(1).repeat_interleave(GROUP)
        ids_BL, seen_BL, action_BT = _padded(engine.drawn, tokenizer.pad_token_id)
        logps_BT = actor(ids_BL, action_BT.shape[1], seen_BL)
        advantage_BT = centred[:, None].expand_as(logps_BT)
        optimizer.zero_grad()
        loss(logps_BT, logps_BT.detach(), advantage_BT, action_mask=action_BT).backward()
        optimizer.step()
        engine.load_weights(model.state_dict().items())
        _record(recorder, step, engine.drawn, reward_B, centred, logps_BT.detach())


def _padded(drawn: Any, pad: int) -> tuple[Any, Any, Any]:
    """Prompts to the left, completions to the right, as OpenRLHF lays them out."""
    import torch

    before, after = (max(len(one[k]) for one in drawn) for k in (0, 1))
    ids, seen, action = [], [], []
    for prompt, said, _ in drawn:
        left, right = before - len(prompt), after - len(said)
        ids.append([pad] * left + prompt + said + [pad] * right)
        seen.append([0] * left + [1] * (len(prompt) + len(said)) + [0] * right)
        action.append([1] * len(said) + [0] * right)
    return torch.tensor(ids), torch.tensor(seen), torch.tensor(action)


def _record(
    recorder: Any, step: int, drawn: Any, reward_B: Any, centred: Any, logps_BT: Any
) -> None:
    rollouts, tokens = [], []
    for k, (prompt, said, logps) in enumerate(drawn):
        own = {"step": step, "rollout": k}
        more = {"group": k // GROUP, "reward": float(reward_B[k]), "advantage": float(centred[k])}
        rollouts.append(own | more | {"weight_version": step - 1, "as_sampled": 1})
        trainer = logps_BT[k, : len(said)].tolist()
        ones = [1] * len(said)
        detail = {"prompt_ids": prompt, "ids": said, "author": ones, "trained": ones}
        tokens.append(own | detail | {"sampler": logps, "trainer": trainer})
    recorder.log_rollouts(rollouts)
    recorder.log_tokens(tokens)
    recorder.log_step(step=step)


def _without_kernels() -> None:
    """OpenRLHF imports what only a GPU needs; nothing of it is called here."""
    names = ("flash_attn", "flash_attn.utils", "flash_attn.utils.distributed", "deepspeed")
    for name in names:
        module = sys.modules.setdefault(name, ModuleType(name))
        module.__spec__ = ModuleSpec(name, None)  # transformers asks for it
    sys.modules["flash_attn.utils.distributed"].all_gather = None  # type: ignore[attr-defined]
