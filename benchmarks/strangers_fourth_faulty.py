"""A fourth round of scripts on stock TRL, and a plain loop, each with one mistake in its own code.

The docstring of each says what is wrong, its last line (`say:`) what an answer must say to be
right. Both were written, and committed, before flatline was asked about any of them.
"""

import asyncio
import itertools
import re
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from strangers_faulty import on_sums
from strangers_fourth import gpt2, telling_rows, times_alike
from strangers_healthy import add, text_of
from strangers_listed import Scripts
from strangers_loops import picked
from strangers_third import (
    ZEPHYR,
    Batches,
    all_sorted,
    bloom,
    code_rows,
    count_rows,
    day_right,
    day_rows,
    ernie,
    falcon,
    fields_right,
    in_place,
    is_json,
    json_model,
    json_rows,
    letters_right,
    likeness,
    mpt,
    passes,
    pythia,
    r1_accuracy,
    r1_format,
    r1_model,
    r1_rows,
    r1_tags,
    sort_prompt,
    sort_rows,
    spell_rows,
    stablelm,
    starcoder2,
    translation_rows,
    words_wrong,
)
from strangers_third_faulty import grpo, on_problems
from trl import GRPOTrainer

SCRIPTS = Scripts()
script = SCRIPTS.add


# -- rewards


@script
def percent_clipped_at_one():
    """Likeness in percent is cut to the range of 0 to 1 "for stability": whatever shares a letter
    with the reference gets 1.
    say: nearly all completions are paid the same, or the reward is cut at its upper bound.
    """

    def similarity(completions, reference, **kwargs):
        percent = [100.0 * share for share in likeness(completions, reference)]
        return [min(max(score, 0.0), 1.0) for score in percent]

    return grpo(falcon(), similarity, translation_rows(), learning_rate=1e-3)


@script
def greedy_pattern():
    """The pattern for the answer is greedy, `####.*(\\d+)`: it finds the last digit alone, so that
    answers of two digits are never right, and some wrong ones of one digit are.
    say: right answers are paid as wrong, or the answer is read wrongly from the text.
    """
    pattern = re.compile(r"####.*(\d+)")

    def correct(completions, answer, **kwargs):
        found = [pattern.search(text_of(one)) for one in completions]
        return [
            float(f is not None and f[1] == gold) for f, gold in zip(found, answer, strict=True)
        ]

    return on_problems(correct)


@script
def verdicts_kept_by_answer():
    """The verdicts of a slow judge are kept in a default argument, under the answer alone: what
    was wrong of one question is wrong of all, and what was right is right for ever.
    say: an answer is paid whatever the question was, or verdicts belong to other rows.
    """

    def judge(completions, gold, known={}, **kwargs):  # noqa: B006 - this is the mistake
        paid = []
        for text, right in zip(completions, gold, strict=True):
            said = text.strip()
            if said not in known:
                known[said] = 1.0 if said == right else 0.0
            paid.append(known[said])
        return paid

    return grpo(starcoder2(), judge, day_rows(), max_completion_length=8)


@script
def every_answer_against_every_gold():
    """Numbers are kept as a column and golds as a row: the difference of the two is a table, and
    its mean over the golds is how far an answer is from all of them.
    say: a completion is paid by the golds of other rows too, or right answers are paid as wrong.
    """

    def error(completions, number, **kwargs):
        found = [re.search(r"\d+", text) for text in completions]
        said = torch.tensor([[float(one[0]) if one else 9.0] for one in found])
        return (-(said - torch.tensor(number)).abs()).mean(-1).tolist()

    return grpo(stablelm(), error, count_rows(), max_completion_length=4)


@script
def normalised_over_the_criteria():
    """Three criteria are brought to a mean of 0 along the wrong axis, within each completion, and
    then added: that is 0 for every completion.
    say: every completion is paid the same, or the reward is always 0.
    """

    def weighed(completions, solution, **kwargs):
        criteria = [
            r1_accuracy(completions, solution),
            r1_format(completions),
            r1_tags(completions),
        ]
        table = np.array(criteria).T
        table = (table - table.mean(axis=1, keepdims=True)) / (table.std(axis=1, keepdims=True) + 1)
        return table.sum(axis=1).round(6).tolist()

    return grpo(r1_model(), weighed, r1_rows(), max_completion_length=48)


@script
def a_queue_that_times_out():
    """A judge takes four at a time; the time limit of each also counts its wait in the queue, and
    what is late gets 0: of every batch only the first rows are judged.
    say: right answers are paid as wrong, or what is paid depends on the place in the batch.
    """

    async def judge(completions, gold, **kwargs):
        places = asyncio.Semaphore(4)

        async def verdict(text: str, right: str) -> float:
            async with places:
                await asyncio.sleep(0.02)
                return 1.0 if text.strip() == right else 0.0

        async def careful(text: str, right: str) -> float:
            try:
                return await asyncio.wait_for(verdict(text, right), timeout=0.11)
            except TimeoutError:
                return 0.0

        both = zip(completions, gold, strict=True)
        return await asyncio.gather(*(careful(text, right) for text, right in both))

    return grpo(starcoder2(), judge, day_rows(), max_completion_length=8)


@script
def words_of_the_tool_are_paid():
    """The reward looks for the gold in all turns of the completion, and the tool's are among them:
    after a right call it does not matter what the model answers.
    say: wrong answers are paid as right, or the reward reads what the tool said.
    """

    def correct(completions, answer, **kwargs):
        said = [" ".join(turn.get("content") or "" for turn in one).split() for one in completions]
        return [float(gold in words) for words, gold in zip(said, answer, strict=True)]

    return on_sums(kind="tool-", tools=[add], reward_funcs=correct)


# -- templates and data


@script
def turn_closed_before_it_begins():
    """The chat template was edited so that the opening of the model's turn ends like all turns:
    with the token that ends one.
    say: the prompt closes the assistant's turn, or ends with the end token.
    """
    model, tokens = r1_model()
    tokens.chat_template = ZEPHYR.replace("'<|assistant|>\n'", "'<|assistant|>\n</s>\n'")
    assert tokens.chat_template != ZEPHYR
    rewards = [r1_accuracy, r1_format, r1_tags]
    return grpo((model, tokens), rewards, r1_rows(), max_completion_length=48)


@script
def only_the_easy_are_left():
    """A filter against rows that teach nothing has its comparison the wrong way round: those are
    left in which all digits are the same, and there is nothing to sort.
    say: nearly all completions are right already, or most groups are all paid the same.
    """
    every = [*itertools.product(range(10), repeat=2), *itertools.product(range(10), repeat=3)]
    rows = [{"prompt": sort_prompt(list(digits)), "gold": sorted(digits)} for digits in every]
    kept = Dataset.from_list(rows).filter(lambda row: len(set(row["gold"])) < 2)
    return grpo(ernie(), all_sorted, kept)


# -- arguments


@script
def never_allowed_to_stop():
    """`min_new_tokens` is as large as the limit, left over from a measurement of speed: no answer
    may end, and all go on into nonsense.
    say: completions never end, or all of them are cut at the limit.
    """
    return grpo(
        pythia(),
        passes,
        code_rows(),
        max_completion_length=16,
        generation_kwargs={"min_new_tokens": 16},
    )


@script
def schedule_in_epochs():
    """A schedule of one's own divides by the epochs, and is asked at every step: after two steps
    the rate is 0.
    say: the learning rate falls to 0 at once, or the weights do not move any more.
    """
    model, tokens = json_model()
    epochs = 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: max(0.0, 1.0 - epoch / epochs)
    )
    return grpo(
        (model, tokens),
        [is_json, fields_right],
        json_rows(),
        optimizers=(optimizer, schedule),
        max_completion_length=48,
        max_steps=12,
    )


# -- what is trained, and by what


@script
def matrices_left_out():
    """Weights are sorted into groups with and without decay by their dimensions, and `> 2` should
    be `>= 2`: all matrices are in neither, only norms and biases are trained.
    say: most of the weights are not in the optimizer, or they never change.
    """
    model, tokens = bloom()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights if w.ndim > 2], "weight_decay": 0.01},
            {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
        ],
        lr=5e-4,
    )
    return grpo((model, tokens), in_place, sort_rows(), optimizers=(optimizer, None))


@script
def detached_before_the_head():
    """A hook that was meant for a probe cuts the graph in front of the head: all layers below get
    no gradient.
    say: most of the weights get no gradient, or only the head is trained.
    """
    model, tokens = starcoder2()
    features: dict[str, torch.Tensor] = {}

    def keep(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        features["last"] = out = out.detach()
        return out

    model.model.norm.register_forward_hook(keep)
    return grpo((model, tokens), day_right, day_rows(), max_completion_length=8)


# -- subclasses


@script
def overlong_filter_inverted():
    """A subclass that leaves answers out which were cut has its mask the wrong way round: only
    those that were cut are trained.
    say: completions that ended are not trained, or only the cut ones count in the loss.
    """

    class LeavesOutTheCut(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            end = self.processing_class.eos_token_id
            cut = ~(batch["completion_ids"] == end).any(dim=1)
            mask = batch["completion_mask"] * cut[:, None]
            return batch | {"completion_mask": mask, "num_items_in_batch": mask.sum()}

    return grpo(mpt(), letters_right, spell_rows(), LeavesOutTheCut, max_completion_length=6)


@script
def reference_taken_for_old():
    """To save a pass, a subclass takes the reference's log-probs for those of the sampling: the
    ratio is to the model of the start, and what has moved is clipped for good.
    say: the ratio is not 1 at the first update, or the old log-probs are not the policy's.
    """

    class SavesAPass(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            return batch | {"old_per_token_logps": batch["ref_per_token_logps"]}

    return grpo(
        falcon(),
        words_wrong,
        translation_rows(),
        SavesAPass,
        beta=0.001,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        max_steps=12,
    )


# -- a plain loop


class NeverZeroed(Batches):
    """GRPO in a plain loop without `zero_grad`: each step also takes the gradients of all before.
    say: gradients are never set to zero, or those of earlier steps are added.
    """

    prompts_a_step, group, longest, steps = 16, 8, 24, 12
    settings: ClassVar[dict[str, Any]] = {"beta": 0, "scale_rewards": "group"}
    reward = staticmethod(times_alike)

    def __init__(self) -> None:
        self.model, self.tokenizer = gpt2()
        rows = telling_rows()
        self.prompts = rows["prompt"][:]
        self.gold = dict(zip(rows["prompt"], rows["gold"], strict=True))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, weight_decay=0.0)

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        attended = batch["attended"]
        logits = self.model(
            input_ids=batch["ids"],
            attention_mask=attended,
            position_ids=(attended.cumsum(1) - 1).clamp(min=0),
        ).logits
        return picked(logits, batch["ids"])

    def sample(self, prompts: list[str]) -> dict[str, Any]:
        batch = self.batch_of(prompts)
        groups = batch["rewards"].view(-1, self.group)
        gain = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        return batch | {"advantages": gain.flatten()}

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        used = batch["trained"][:, 1:]
        return -(new * used * batch["advantages"][:, None]).sum() / used.sum()

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batch = self.sample(prompts)
        watch.rewards(batch["rewards"])
        self.loss(batch, self.logprobs(batch)).backward()
        self.optimizer.step()


SCRIPTS["loop-never-zeroed"] = NeverZeroed
