"""The loops as `flatline.Loop`s: what their authors would write."""

from functools import partial

import flatline
from tests.loops import engine, notebook, padded


class NobodyWatches:
    def rewards(self, *args, **kwargs):
        pass


def told(batch, prompts):
    """With what a loop knows of its rewards beside them."""
    gold = [problem.answer for _, problem in prompts for _ in range(8)]
    return {**batch, "parts": {"accuracy": batch["rewards"]}, "gold": gold}


def one_by_one(experience, model, tokenizer, prompts, **how):
    """A batch for each prompt."""
    found = [experience(model, tokenizer, *one, **how) for one in prompts]
    return [told(batch, [one]) for batch, one in zip(found, prompts, strict=True)]


def together(experience, model, tokenizer, prompts, **how):
    return told(experience(model, tokenizer, prompts, **how), prompts)


def adapted(loop, sampled, logprobs, model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        return sampled(loop.experience, model, tokenizer, prompts, defect=defect)

    def step():
        loop.train(model, tokenizer, optimizer, rows, NobodyWatches(), steps=1, defect=defect)

    return flatline.Loop(
        model=model,
        optimizer=optimizer,
        tokenizer=tokenizer,
        prompts=rows,
        sample=sample,
        logprobs=lambda batch: logprobs(model, batch),
        loss=loop.loss_of,
        step=step,
        settings={"beta": 0, "tools": 0},
    )


ADAPTED = {
    "notebook": partial(
        adapted,
        notebook,
        one_by_one,
        lambda model, batch: notebook.token_logprobs(model, batch["ids"]),
    ),
    "padded": partial(
        adapted,
        padded,
        together,
        lambda model, batch: padded.logprobs(model, batch["ids"], batch["attended"]),
    ),
    "engine": partial(adapted, engine, one_by_one, engine.token_logprobs),
}
