"""A third round of scripts on stock TRL, each with one mistake that people make in their own code.

The docstring of each says what is wrong, its last line (`say:`) what an answer must say to be
right. Both were written, and committed, before flatline was asked about any of them.
"""

import copy
import random
import re
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from strangers_healthy import (
    arguments,
    lab_model,
    lab_tokenizer,
    problems,
    right,
    sums,
    sums_model,
)
from strangers_listed import Scripts
from strangers_third import (
    Boxes,
    adapter_folder,
    all_sorted,
    bloom,
    box_model,
    box_rows,
    code_rows,
    count_rows,
    day_right,
    day_rows,
    ernie,
    falcon,
    fields_right,
    in_place,
    json_model,
    json_rows,
    kind_said,
    letters_right,
    lfm2,
    mpt,
    nearness,
    passes,
    pythia,
    r1_accuracy,
    r1_format,
    r1_model,
    r1_rows,
    r1_tags,
    sampled,
    shot_rows,
    sort_prompt,
    sort_rows,
    spell_rows,
    stablelm,
    starcoder2,
    texts_of,
    translation_rows,
    words_wrong,
)
from transformers import TrainerCallback
from trl import GRPOTrainer

SCRIPTS = Scripts()
script = SCRIPTS.add
OF_THE_TRAINER = (
    "callbacks",
    "environment_factory",
    "optimizers",
    "peft_config",
    "rollout_func",
)


def grpo(
    made: tuple[Any, Any], rewards: Any, rows: Dataset, trainer: Any = GRPOTrainer, **changes: Any
) -> Any:
    """GRPO with some settings; `changes` are the trainer's arguments, or those of its config."""
    given = {name: changes.pop(name) for name in OF_THE_TRAINER if name in changes}
    config = {
        "per_device_train_batch_size": 64,
        "max_completion_length": 16,
        "learning_rate": 5e-4,
        "bf16": False,
        "max_steps": 10,
    }
    model, tokens = made
    return trainer(
        model=model,
        processing_class=tokens,
        reward_funcs=rewards,
        args=arguments(**(config | changes)),
        train_dataset=rows,
        **given,
    )


def on_problems(rewards: Any = right, rows: Any = None, **changes: Any) -> Any:
    """The same on word problems."""
    rows = Dataset.from_list(problems()) if rows is None else rows
    made = changes.pop("model", None) or lab_model(), lab_tokenizer()
    changes = {"max_completion_length": 64, "learning_rate": 2e-4} | changes
    return grpo(made, rewards, rows, **changes)


# -- rewards


@script
def gold_somewhere_in_the_text():
    """The reward asks whether the gold number stands anywhere in the text, also inside another.
    say: wrong answers are paid as right, or the check is too loose.
    """

    def correct(completions, answer, **kwargs):
        said = texts_of(completions)
        return [1.0 if gold in text else 0.0 for text, gold in zip(said, answer, strict=True)]

    small = [row for row in problems(1000) if int(row["answer"]) < 10]
    return on_problems(correct, Dataset.from_list(small))


@script
def error_as_reward():
    """The metric of the evaluation is handed over as the reward; it is an error, not a score.
    say: worse answers are paid more than better ones, or the reward is inverted.
    """

    def absolute_error(completions, number, **kwargs):
        said = [re.search(r"\d+", text) for text in completions]
        return [
            float(abs(int(one[0]) - gold)) if one else 10.0
            for one, gold in zip(said, number, strict=True)
        ]

    return grpo(stablelm(), absolute_error, count_rows(), max_completion_length=4)


@script
def wrong_is_none():
    """Wrong answers get None, meant as "no reward": TRL leaves them out, and only ones are left.
    say: wrong answers are not scored, or all that is scored in a group is the same.
    """

    def correct(completions, gold, **kwargs):
        said = [text.strip() for text in completions]
        return [1.0 if s == g else None for s, g in zip(said, gold, strict=True)]

    return grpo(starcoder2(), correct, day_rows(), max_completion_length=8)


@script
def weights_of_another_order():
    """The rewards were put into another order and their weights were not: correctness counts 0.
    say: correctness does not count in the reward, its weight is 0.
    """
    return grpo(
        r1_model(),
        [r1_format, r1_tags, r1_accuracy],
        r1_rows(),
        reward_weights=[1.0, 0.2, 0.0],
        max_completion_length=48,
    )


@script
def tags_found_in_the_prompt():
    """The format is looked for in prompt and answer together; the system prompt names all tags.
    say: every completion is paid the same, or the reward does not depend on the completion.
    """

    def has_format(prompts, completions, **kwargs):
        pattern = re.compile(r"<think>.*</think>.*<answer>.*</answer>", re.DOTALL)
        whole = [
            "\n".join(turn["content"] for turn in [*asked, *said])
            for asked, said in zip(prompts, completions, strict=True)
        ]
        return [1.0 if pattern.search(text) else 0.0 for text in whole]

    return grpo(r1_model(), has_format, r1_rows(), max_completion_length=48)


# -- tokenizers and data


@script
def marker_is_a_special_token():
    """The marker of the answer is declared a special token, and TRL decodes without those.
    say: right answers are never paid, or the marker is lost when completions are decoded.
    """
    model, tokens = sums_model()
    tokens.add_special_tokens({"additional_special_tokens": ["####"]})
    rows = Dataset.from_json(str(sums() / "sums.jsonl"))
    return grpo((model, tokens), right, rows, max_completion_length=8, learning_rate=1e-3)


@script
def column_added_after_a_shuffle():
    """The prompts are shuffled, then the answers are added in the order of the file.
    say: the golds belong to other rows, or right answers are paid as wrong.
    """
    rows = problems()
    asked = Dataset.from_list([{"prompt": row["prompt"]} for row in rows]).shuffle(seed=3)
    return on_problems(rows=asked.add_column("answer", [row["answer"] for row in rows]))


@script
def only_the_hardest_are_left():
    """A filter against easy tasks leaves those of nine digits and more, of which none is solved.
    say: no completion is ever paid, or the tasks are too hard for this model.
    """
    drawn, rows = random.Random(4), []
    for at in range(640):
        digits = [drawn.randrange(10) for _ in range(2 + at % 10)]
        rows.append({"prompt": sort_prompt(digits), "gold": sorted(digits)})
    hard = Dataset.from_list(rows).filter(lambda row: len(row["gold"]) >= 9)
    return grpo(ernie(), all_sorted, hard, max_completion_length=28)


# -- arguments


@script
def iterations_of_the_whole_run():
    """`num_iterations` was taken for the length of the run: one batch is trained all the time.
    say: the same completions are trained again and again, or the data is far off-policy.
    """
    return grpo(pythia(), passes, code_rows(), num_iterations=100, max_steps=12)


@script
def epsilon_against_zero():
    """`epsilon` was taken for the small number that keeps a division from zero.
    say: the clip range is next to nothing, or tokens are clipped after the first update.
    """
    return grpo(
        json_model(),
        fields_right,
        json_rows(),
        epsilon=1e-8,
        num_iterations=4,
        max_completion_length=40,
        max_steps=12,
    )


@script
def penalty_on_what_must_be_repeated():
    """A repetition penalty of 1.8 in the sampler, where answers repeat the numbers of the question.
    say: what is sampled is not what the model would say, or the repetition penalty is at fault.
    """
    return on_problems(repetition_penalty=1.8)


@script
def stops_at_the_end_of_a_line():
    """The newline is a stop token, so that the model stops after its answer: it never gets there.
    say: completions stop before they answer, or a stop token stands in the middle of them.
    """
    tokens = lab_tokenizer()
    newline = tokens("\n", add_special_tokens=False).input_ids[-1]
    return on_problems(generation_kwargs={"eos_token_id": [tokens.eos_token_id, newline]})


# -- what is trained, and by what


@script
def optimizer_of_the_bare_model():
    """The optimizer was made before the adapters were: it holds the frozen weights alone.
    say: what is trained is not in the optimizer, or the adapter never changes.
    """
    model, tokens = falcon()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    return grpo(
        (model, tokens),
        words_wrong,
        translation_rows(),
        optimizers=(optimizer, None),
        peft_config=LoraConfig(r=8, target_modules=["query_key_value", "dense"]),
    )


@script
def adapter_loaded_to_be_used():
    """A trained adapter is loaded without `is_trainable`: everything is frozen.
    say: nothing can be trained, or the adapter is frozen.
    """
    folder = adapter_folder(*starcoder2())
    model, tokens = starcoder2()
    return grpo(
        (PeftModel.from_pretrained(model, folder), tokens),
        day_right,
        day_rows(),
        max_completion_length=8,
        learning_rate=5e-3,
    )


@script
def steps_lost_in_bf16():
    """Weights are kept in bf16 and learn at 1e-6: each step is smaller than what bf16 can hold.
    say: the weights do not move, or the updates are lost in the rounding of bf16.
    """
    return on_problems(model=lab_model().to(torch.bfloat16), learning_rate=1e-6, bf16=True)


class AveragesWeights(TrainerCallback):
    """Keeps a running mean of the weights, with the two sides exchanged."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.mean = [weight.detach().clone() for weight in model.parameters()]

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for mean, weight in zip(self.mean, model.parameters(), strict=True):
            weight.lerp_(mean, 0.999)


@script
def average_written_into_the_model():
    """A callback for a mean of the weights writes it into the model, and so undoes every step.
    say: the weights are put back after each step, or something else changes them.
    """
    return grpo(stablelm(), nearness, count_rows(), callbacks=[AveragesWeights()])


@script
def reference_is_the_policy():
    """To save memory, the reference is set to the model that is trained.
    say: the reference is the model itself, or the KL is always 0.
    """
    trainer = grpo(pythia(), passes, code_rows(), beta=0.1)
    trainer.ref_model = trainer.model
    return trainer


# -- subclasses


@script
def logprobs_not_shifted():
    """A subclass with log-probs of its own takes the logits at each token, not at the one before.
    say: the log-probabilities are not those of the sampled tokens, or they are off by one.
    """

    class Leaner(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        ):
            logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
            logp = (logits[:, -logits_to_keep:] / self.temperature).log_softmax(-1)
            taken = input_ids[:, -logits_to_keep:, None]
            return logp.gather(2, taken)[..., 0], -(logp.exp() * logp).sum(-1), None

    return grpo(json_model(), fields_right, json_rows(), Leaner, max_completion_length=40)


@script
def mask_moved_by_one():
    """A subclass moves the mask of the loss, as logits are one off: the first token, here the
    answer itself, is not trained.
    say: the first token of each answer is not trained, or the mask of the loss is off by one.
    """

    class AlignsTheMask(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            moved = torch.nn.functional.pad(inputs["completion_mask"][:, :-1], (1, 0))
            return super()._compute_loss(model, inputs | {"completion_mask": moved})

    rows = day_rows()
    return grpo(starcoder2(), day_right, rows, AlignsTheMask, max_completion_length=8)


@script
def groups_the_wrong_way_round():
    """A subclass with advantages of its own folds the rewards as (group, prompt), not (prompt,
    group): answers are compared with those to other prompts.
    say: advantages are not taken within the answers to one prompt, or groups are mixed.
    """

    class OwnAdvantages(GRPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            paid = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            self.paid = paid.sum(1)
            return paid

        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            folded = self.paid.view(self.num_generations, -1)
            centred = folded - folded.mean(0, keepdim=True)
            gain = centred / (folded.std(0, keepdim=True) + 1e-4)
            return batch | {"advantages": gain.flatten()}

    return grpo(bloom(), in_place, sort_rows(), OwnAdvantages)


@script
def seeded_before_every_answer():
    """For runs that can be repeated, the seed is set before every answer: all are the same.
    say: the completions of a group are the same, or the random numbers are reset.
    """

    class Repeatable(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations):
            completions = []
            for ids in prompt_ids:
                torch.manual_seed(self.args.seed)
                one, _ = super()._generate_single_turn([ids], images, multimodal_fields, 1)
                completions += one
            return completions, None

    return grpo(mpt(), letters_right, spell_rows(), Repeatable, max_completion_length=10)


# -- rollouts, environments and tools


@script
def sampler_never_updated():
    """Rollouts come from a copy of the model that was made at the start and never gets new weights.
    say: the completions are another model's than the one that is trained, or they are stale.
    """
    model, tokens = lfm2()
    sampler = copy.deepcopy(model).requires_grad_(False)

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return sampled(sampler, prompts, trainer)

    return grpo(
        (model, tokens),
        kind_said,
        shot_rows(),
        rollout_func=rollout,
        learning_rate=1e-3,
        gradient_checkpointing=False,
    )


class NeverForgets(Boxes):
    """The boxes, with a score that a new game does not set back."""

    score = 0.0

    def get_reward(self) -> float:
        self.score += super().get_reward()
        return self.score


@script
def score_of_all_games():
    """The environment adds each game to its score, and `reset` does not set it back.
    say: the reward depends on earlier episodes, or the same completion is not paid the same.
    """
    return grpo(
        box_model(), None, box_rows(), environment_factory=NeverForgets, max_completion_length=48
    )


@script
def words_of_the_tool_are_trained():
    """A subclass drops the mask of the tools: what they wrote is trained as the model's words.
    say: tokens of the tool are trained, or the mask of the loss holds what the model did not write.
    """

    class Unmasked(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            batch.pop("tool_mask", None)
            return batch

    return grpo(
        box_model(), None, box_rows(), Unmasked, environment_factory=Boxes, max_completion_length=48
    )
