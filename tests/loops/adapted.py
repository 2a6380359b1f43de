"""The loops as `flatline.Loop`s: what their authors would write."""

import flatline
from tests.loops import engine, notebook, padded


class NobodyWatches:
    def rewards(self, *args, **kwargs):
        pass


def told(batch, prompts):
    """With what a loop knows of its rewards beside them."""
    gold = [problem.answer for _, problem in prompts for _ in range(8)]
    return {**batch, "parts": {"accuracy": batch["rewards"]}, "gold": gold}


def adapted_notebook(model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        found = [notebook.experience(model, tokenizer, *one, defect=defect) for one in prompts]
        return [told(batch, [one]) for batch, one in zip(found, prompts, strict=True)]

    def step():
        notebook.train(model, tokenizer, optimizer, rows, NobodyWatches(), steps=1, defect=defect)

    return flatline.Loop(
        model=model,
        optimizer=optimizer,
        tokenizer=tokenizer,
        prompts=rows,
        sample=sample,
        logprobs=lambda batch: notebook.token_logprobs(model, batch["ids"]),
        loss=notebook.loss_of,
        step=step,
        settings={"beta": 0, "tools": 0},
    )


def adapted_padded(model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        return told(padded.experience(model, tokenizer, prompts, defect=defect), prompts)

    def step():
        padded.train(model, tokenizer, optimizer, rows, NobodyWatches(), steps=1, defect=defect)

    return flatline.Loop(
        model=model,
        optimizer=optimizer,
        tokenizer=tokenizer,
        prompts=rows,
        sample=sample,
        logprobs=lambda batch: padded.logprobs(model, batch["ids"], batch["attended"]),
        loss=padded.loss_of,
        step=step,
        settings={"beta": 0, "tools": 0},
    )


def adapted_engine(model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        found = [engine.experience(model, tokenizer, *one, defect=defect) for one in prompts]
        return [told(batch, [one]) for batch, one in zip(found, prompts, strict=True)]

    def step():
        engine.train(model, tokenizer, optimizer, rows, NobodyWatches(), steps=1, defect=defect)

    return flatline.Loop(
        model=model,
        optimizer=optimizer,
        tokenizer=tokenizer,
        prompts=rows,
        sample=sample,
        logprobs=lambda batch: engine.token_logprobs(model, batch),
        loss=engine.loss_of,
        step=step,
        settings={"beta": 0, "tools": 0},
    )


ADAPTED = {"notebook": adapted_notebook, "padded": adapted_padded, "engine": adapted_engine}
