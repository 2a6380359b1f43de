"""RL goes on training the SFT adapter: the model is already a PeftModel (DoRA, rank-stabilised, no adapter on the
embeddings), so TRL copies the adapter to a frozen one called `ref` and the KL is taken to the SFT policy, not to the
bare base model; only a tenth of the weights is trainable, hence the high rate."""

import random

from datasets import Dataset
from material import base_args, byte_bpe_tokenizer, half_right, teach, tiny
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

COLOURS = ["red", "green", "blue", "white", "black", "grey"]
ANIMALS = (
    "ant bat bee cat cow crab deer dog duck eel fox frog goat hare hawk hen jay lion mole owl pig rat swan wolf"
).split()


def table():
    """A made-up table: one colour for each of twenty-four animals."""
    rng = random.Random(7)
    return [(f"colour of the {animal}?", f" it is {rng.choice(COLOURS)}.") for animal in ANIMALS]


def other(rng, answer):
    """The sentence with another colour, sometimes with a wordy ending."""
    word = rng.choice([c for c in COLOURS if f" {c}." not in answer])
    return f" it is {word}." if rng.random() < 0.7 else f" it is {word}, it is."


def names_the_colour(completions, answer, **kwargs):
    """1 if the sentence is exactly right, 0.8 if the right colour comes with more words, else 0."""
    scores = []
    for text, gold in zip(completions, answer):
        colour = gold.strip(" .").split(" ")[-1]
        said = [w for w in text.replace(",", " ").replace(".", " ").split() if w in COLOURS]
        scores.append(0.0 if said != [colour] else 1.0 if text == gold else 0.8)
    return scores


def build():
    corpus = [p + a for p, a in table()]
    tok = byte_bpe_tokenizer(corpus, vocab_size=400, padding_side="left")
    base = tiny("stablelm", tok, hidden=96, layers=2)
    # pre-training: the language of the task, with answers that are seldom right
    teach(base, half_right(tok, table(), other, right=0.35, copies=20), steps=350, lr=3e-3, pad=tok.pad_token_id)
    model = get_peft_model(
        base,
        LoraConfig(
            r=8,
            lora_alpha=16,
            use_dora=True,
            use_rslora=True,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    # SFT of the adapter: right half of the time
    teach(model, half_right(tok, table(), other, right=0.55, copies=20), steps=250, lr=4e-3, pad=tok.pad_token_id)
    rows = table()
    args = GRPOConfig(
        **base_args(
            beta=0.02,
            loss_type="dapo",
            epsilon_high=0.28,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=16,
            learning_rate=2e-3,
            warmup_steps=2,
            max_steps=10,
            seed=8,
        )
    )
    dataset = Dataset.from_dict({"prompt": [p for p, _ in rows], "answer": [a for _, a in rows]})
    return GRPOTrainer(model, names_the_colour, args=args, train_dataset=dataset, processing_class=tok)
