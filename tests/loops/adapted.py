"""The loops as `flatline.Loop`s: what their authors would write."""

import flatline
from tests.loops import engine, notebook, padded


class NobodyWatches:
    def rewards(self, *args, **kwargs):
        pass


def adapted_notebook(model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        return [notebook.experience(model, tokenizer, *one, defect=defect) for one in prompts]

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
    )


def adapted_padded(model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        return padded.experience(model, tokenizer, prompts, defect=defect)

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
    )


def adapted_engine(model, tokenizer, optimizer, rows, *, defect=False):
    def sample(prompts):
        return [engine.experience(model, tokenizer, *one, defect=defect) for one in prompts]

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
    )


ADAPTED = {"notebook": adapted_notebook, "padded": adapted_padded, "engine": adapted_engine}
