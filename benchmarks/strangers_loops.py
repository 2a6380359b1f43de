"""Three plain PyTorch loops of the second round of strangers, and what their authors would write
of them for `flatline.Loop`. The loops know nothing of flatline but `watch.rewards`.
"""

import copy
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from strangers_material import (
    byte_pairs,
    fitted,
    fresh,
    long_or_short,
    question,
    spaced_words,
    text_rows,
    whole_words,
)
from torch import nn
from transformers import GPTNeoXConfig, Qwen3Config

import flatline

SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SCRIPTS: dict[str, Any] = {}
"""Every loop by name: a function that makes it."""


class NobodyWatches:
    def rewards(self, *args: Any, **kwargs: Any) -> None:
        pass


class OwnLoop:
    """A model, its optimizer, and how they are trained."""

    steps = 8
    model: Any
    tokenizer: Any
    optimizer: Any
    prompts: list[str]
    prompts_a_step: int
    settings: ClassVar[dict[str, Any]]

    def prompts_of(self, step: int) -> list[str]:
        first = step * self.prompts_a_step % len(self.prompts)
        return self.prompts[first : first + self.prompts_a_step]

    def train(self, watch: Any) -> None:
        for step in range(self.steps):
            self.one_step(self.prompts_of(step), watch)

    def adapted(self) -> flatline.Loop:
        asked = self.prompts_of(0)
        return flatline.Loop(
            model=self.model,
            optimizer=self.optimizer,
            tokenizer=self.tokenizer,
            prompts=asked,
            sample=self.sample,
            logprobs=self.logprobs,
            loss=self.loss,
            step=lambda: self.one_step(asked, NobodyWatches()),
            settings={"tools": 0, "max_steps": self.steps, **self.settings},
        )

    def sample(self, prompts: list[str]) -> Any:
        raise NotImplementedError

    def logprobs(self, batch: Any) -> torch.Tensor:
        raise NotImplementedError

    def loss(self, batch: Any, new: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def one_step(self, prompts: list[str], watch: Any) -> None:
        raise NotImplementedError


def share_of_cats(texts: list[str]) -> torch.Tensor:
    split = [text.split() for text in texts]
    return torch.tensor([one.count("cat") / max(len(one), 1) for one in split])


def until_the_end(completions: torch.Tensor, end: int) -> torch.Tensor:
    """Which tokens the model wrote: all up to its end token, and that one."""
    ended = (completions == end).int()
    return ended.cumsum(1) - ended == 0


def picked(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]


# -- a recurrent network, one answer for each of sixteen prompts


class Recurrent(nn.Module):
    """Reads word by word; knows neither attention nor positions."""

    def __init__(self, words: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.cells = nn.GRU(width, width, batch_first=True)
        self.lm_head = nn.Linear(width, words)

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> SimpleNamespace:
        hidden, _ = self.cells(self.embedding(input_ids))
        return SimpleNamespace(logits=self.lm_head(hidden))


class OneAnswerEach(OwnLoop):
    """REINFORCE: one answer for each prompt, and the mean of the batch as its baseline.

    Padding stands behind the end, where a recurrent network has nothing to read it for.
    """

    prompts_a_step, longest = 16, 12
    settings: ClassVar[dict[str, Any]] = {"beta": 0}

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tokenizer = whole_words()
        rows = text_rows()
        self.prompts = rows["prompt"][:]
        self.model = fitted(Recurrent(len(self.tokenizer)), self.tokenizer, rows)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=3e-4)

    @torch.no_grad()
    def written(self, ids: torch.Tensor) -> torch.Tensor:
        done = torch.zeros(len(ids), dtype=torch.bool)
        for _ in range(self.longest):
            drawn = torch.multinomial(self.model(ids).logits[:, -1].softmax(-1), 1)[:, 0]
            drawn[done] = self.tokenizer.pad_token_id
            ids = torch.cat([ids, drawn[:, None]], dim=1)
            done |= drawn == self.tokenizer.eos_token_id
            if done.all():
                break
        return ids

    def sample(self, prompts: list[str]) -> dict[str, Any]:
        asked = self.tokenizer(prompts, return_tensors="pt").input_ids
        ids = self.written(asked)
        said = ids[:, asked.shape[1] :]
        rewards = share_of_cats(self.tokenizer.batch_decode(said, skip_special_tokens=True))
        mask = until_the_end(said, self.tokenizer.eos_token_id)
        return {
            "ids": ids,
            "trained": torch.cat([torch.zeros_like(asked).bool(), mask], dim=1),
            "rewards": rewards,
            "advantages": rewards - rewards.mean(),
        }

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        return picked(self.model(batch["ids"]).logits, batch["ids"])

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        whole = (new * batch["trained"][:, 1:]).sum(1)
        return -(whole * batch["advantages"]).mean()

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batch = self.sample(prompts)
        watch.rewards(batch["rewards"])
        self.optimizer.zero_grad()
        self.loss(batch, self.logprobs(batch)).backward()
        self.optimizer.step()


# -- leave-one-out, a backward pass for every row


class RowByRow(OwnLoop):
    """RLOO with the KL in the reward: sampled together, trained row by row without padding."""

    prompts_a_step, group, longest, beta = 4, 6, 20, 0.05
    settings: ClassVar[dict[str, Any]] = {"beta": 0}

    def __init__(self) -> None:
        self.tokenizer = byte_pairs()
        self.tokenizer.padding_side = "left"
        rows = text_rows(lambda i: f"{question(i)}\n", 32)
        self.prompts = rows["prompt"][:]
        raw = fresh(GPTNeoXConfig, self.tokenizer, **SHAPE)
        self.model = fitted(raw, self.tokenizer, rows)
        self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()
        norms = [w for w in self.model.parameters() if w.ndim == 1]
        tables = [w for w in self.model.parameters() if w.ndim > 1]
        decayed = [{"params": tables, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(decayed, lr=1e-3, betas=(0.9, 0.95))
        self.schedule = torch.optim.lr_scheduler.LinearLR(
            self.optimizer, start_factor=1.0, end_factor=0.2, total_iters=self.steps
        )

    def written(self, prompts: list[str]) -> list[tuple[torch.Tensor, int]]:
        """The ids of every row without its padding, and how many of them are the prompt's."""
        asked = self.tokenizer(prompts, return_tensors="pt", padding=True)
        ids = self.model.generate(
            input_ids=asked.input_ids,
            attention_mask=asked.attention_mask,
            do_sample=True,
            top_k=0,
            num_return_sequences=self.group,
            max_new_tokens=self.longest,
        )
        start = asked.input_ids.shape[1]
        kept = until_the_end(ids[:, start:], self.tokenizer.eos_token_id)
        seen = asked.attention_mask.repeat_interleave(self.group, dim=0).bool()
        used = torch.cat([seen, kept], dim=1)
        return [
            (row[mine][None], int(before.sum()))
            for row, mine, before in zip(ids, used, seen, strict=True)
        ]

    @torch.no_grad()
    def paid(self, ids: torch.Tensor, start: int) -> float:
        """The share of cats, less the KL to the model that training began with."""
        said = self.tokenizer.decode(ids[0, start:], skip_special_tokens=True)
        own, first = (picked(one(ids).logits, ids) for one in (self.model, self.reference))
        return float(share_of_cats([said])[0] - self.beta * (own - first)[0, start - 1 :].sum())

    def sample(self, prompts: list[str]) -> list[dict[str, Any]]:
        rows = self.written(prompts)
        rewards = torch.tensor([self.paid(*row) for row in rows])
        groups = rewards.view(-1, self.group)
        others = (groups.sum(1, keepdim=True) - groups) / (self.group - 1)
        gains = (groups - others).flatten()
        return [
            {
                "ids": ids,
                "trained": (torch.arange(ids.shape[1]) >= start)[None],
                "rewards": rewards[at : at + 1],
                "advantages": gains[at : at + 1],
            }
            for at, (ids, start) in enumerate(rows)
        ]

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        return picked(self.model(batch["ids"]).logits, batch["ids"])

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        whole = (new * batch["trained"][:, 1:]).sum(1)
        return -(whole * batch["advantages"]).sum() / (self.prompts_a_step * self.group)

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batches = self.sample(prompts)
        watch.rewards(
            torch.cat([batch["rewards"] for batch in batches]),
            groups=[at // self.group for at in range(len(batches))],
        )
        self.optimizer.zero_grad()
        for batch in batches:
            self.loss(batch, self.logprobs(batch)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def train(self, watch: Any) -> None:
        for step in range(self.steps):
            self.one_step(self.prompts_of(step), watch)
            self.schedule.step()


# -- GRPO in two updates of two passes each, with an evaluation in between


class EvaluatedInBetween(OwnLoop):
    """GRPO at a temperature of 0.7 in sampler and loss, with a KL to a frozen copy.

    Each generation is trained twice, in two passes an update. Every third step, prompts that are
    not trained are answered greedily, and the scores kept.
    """

    prompts_a_step, group, longest, passes = 8, 4, 24, 2
    temperature, clip, beta = 0.7, 0.2, 0.05
    settings: ClassVar[dict[str, Any]] = {
        "beta": beta,
        "epsilon": clip,
        "loss_type": "bnpo",
        "scale_rewards": "batch",
    }

    def __init__(self) -> None:
        self.tokenizer = spaced_words()
        self.tokenizer.padding_side = "left"
        rows = text_rows(long_or_short, 64)
        self.prompts = rows["prompt"][:]
        self.held_out = [long_or_short(i) for i in range(70, 74)]
        raw = fresh(Qwen3Config, self.tokenizer, **SHAPE, num_key_value_heads=2, head_dim=16)
        self.model = fitted(raw, self.tokenizer, rows)
        self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-4)
        self.scores: list[float] = []

    def generated(self, prompts: list[str], **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids, and the attention mask of the prompts in front."""
        asked = self.tokenizer(prompts, return_tensors="pt", padding=True)
        self.model.eval()
        ids = self.model.generate(
            input_ids=asked.input_ids,
            attention_mask=asked.attention_mask,
            max_new_tokens=self.longest,
            **how,
        )
        self.model.train()
        return ids, asked.attention_mask

    def texts(self, ids: torch.Tensor, start: int) -> list[str]:
        return self.tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)

    def evaluate(self) -> None:
        ids, seen = self.generated(self.held_out, do_sample=False)
        self.scores.append(float(share_of_cats(self.texts(ids, seen.shape[1])).mean()))

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        grouped = rewards.view(-1, self.group)
        centred = (grouped - grouped.mean(1, keepdim=True)).flatten()
        return centred / (rewards.std() + 1e-4)

    def sample(self, prompts: list[str]) -> list[dict[str, Any]]:
        ids, seen = self.generated(
            [prompt for prompt in prompts for _ in range(self.group)],
            do_sample=True,
            temperature=self.temperature,
            top_k=0,
        )
        kept = until_the_end(ids[:, seen.shape[1] :], self.tokenizer.eos_token_id)
        rewards = share_of_cats(self.texts(ids, seen.shape[1]))
        batch = {
            "ids": ids,
            "attended": torch.cat([seen, kept.long()], dim=1),
            "trained": torch.cat([torch.zeros_like(seen).bool(), kept], dim=1),
            "rewards": rewards,
            "advantages": self.advantages(rewards),
        }
        with torch.no_grad():
            batch["old"] = self.scored_by(self.model, batch)
            batch["reference"] = self.scored_by(self.reference, batch)
        parts = [value.chunk(self.passes) for value in batch.values()]
        return [dict(zip(batch, part, strict=True)) for part in zip(*parts, strict=True)]

    def scored_by(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        attended = batch["attended"]
        logits = model(
            input_ids=batch["ids"],
            attention_mask=attended,
            position_ids=(attended.cumsum(1) - 1).clamp(min=0),
        ).logits
        return picked(logits / self.temperature, batch["ids"])

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.scored_by(self.model, batch)

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        gain, ratio = batch["advantages"][:, None], (new - batch["old"]).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        away = batch["reference"] - new
        token = self.beta * (away.exp() - away - 1) - torch.minimum(ratio * gain, clipped * gain)
        used = batch["trained"][:, 1:]
        return (token * used).sum() / used.sum() / self.passes

    def one_step(self, prompts: list[str], watch: Any, updates: int = 1) -> None:
        batches = self.sample(prompts)
        watch.rewards(torch.cat([batch["rewards"] for batch in batches]))
        for _ in range(updates):
            self.optimizer.zero_grad()
            for batch in batches:
                self.loss(batch, self.logprobs(batch)).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()

    def train(self, watch: Any) -> None:
        for step in range(self.steps):
            if step % 3 == 0:
                self.evaluate()
            self.one_step(self.prompts_of(step), watch, updates=2)


SCRIPTS |= {
    "loop-one-answer-each": OneAnswerEach,
    "loop-row-by-row": RowByRow,
    "loop-evaluated-in-between": EvaluatedInBetween,
}
