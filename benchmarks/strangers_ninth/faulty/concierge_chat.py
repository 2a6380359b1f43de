"""The preparation renders each conversation with the chat template and puts the text back as the content of a user message; the trainer then applies the template once
more. The model sees a user turn that contains a whole rendered dialogue with its own <|im_start|> marks and an empty assistant
turn, something it was never taught, and answers far worse than it could; what it learns holds for that odd prompt only.
say: The chat template is applied twice: the user message already contains the rendered template (im_start user ... im_start assistant), and the trainer wraps it again.
"""

import random

from datasets import Dataset
from material import CHATML, base_args, char_tokenizer, half_right, teach, tiny
from trl import GRPOConfig, GRPOTrainer

WHERE = {
    "spa": "9 left", "bar": "1 right", "gym": "8 left", "pool": "9 right",
    "cafe": "2 left", "desk": "0 right", "shop": "1 left", "roof": "7 right",
}  # fmt: skip
GREETINGS = ("", "hi ", "hello ", "please ", "the ", "where is the ")
SYSTEM = "floors"


def shown_the_way(completions, way, **kwargs):
    """1 for floor and side, 0.4 for the floor alone."""
    scores = []
    for turn, gold in zip(completions, way):
        text = turn[0]["content"].strip()
        scores.append(1.0 if text == gold else 0.4 if text[:1] == gold[:1] else 0.0)
    return scores


def lost(rng, answer):
    return f"{rng.randrange(10)} {rng.choice(('left', 'right'))}"


def build():
    tok = char_tokenizer(
        "abcdefghijklmnopqrstuvwxyz0123456789 \n", eos="<|im_end|>", extra=["<|im_start|>"], padding_side="left"
    )
    tok.chat_template = CHATML
    model = tiny("qwen2", tok, hidden=64, seed=40)
    asked = [(greeting, place) for place in WHERE for greeting in GREETINGS]
    random.Random(40).shuffle(asked)
    talks = [
        ([{"role": "system", "content": SYSTEM}, {"role": "user", "content": greeting + place}], WHERE[place])
        for greeting, place in asked
    ]
    teach(model, half_right(tok, talks, lost, right=0.6, copies=20), steps=400, lr=4e-3, pad=tok.pad_token_id)

    def prepared(row):
        text = tok.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        return {"prompt": [{"role": "user", "content": text}]}

    data = Dataset.from_list([{"messages": m, "way": w} for m, w in talks * 2]).map(prepared, remove_columns="messages")
    args = GRPOConfig(
        **base_args(
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=10,
            learning_rate=6e-4,
            lr_scheduler_type="constant",
            max_steps=10,
            seed=40,
        )
    )
    return GRPOTrainer(model, shown_the_way, args=args, train_dataset=data, processing_class=tok)
