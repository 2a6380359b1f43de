"""Few-shot sentiment classification with a completion of exactly one token.

Particular: max_completion_length=1, so no completion ever ends in EOS (clipped_ratio is 1.0 by design, nothing is cut
off); a long few-shot prefix shared by every prompt; tied embeddings; Dr. GRPO loss with unscaled rewards; signed
rewards (+1 right, -1 wrong label, -1.5 not a label at all); constant rate; the same prompts come back every epoch.
"""

import random

from datasets import Dataset
from material import base_args, encode, teach, tiny, word_tokenizer
from trl import GRPOConfig, GRPOTrainer

LABELS = ["positive", "negative", "neutral"]
ADJECTIVES = {
    "positive": ["great", "lovely", "superb", "tasty", "brilliant", "charming"],
    "negative": ["awful", "bland", "rude", "dirty", "boring", "broken"],
    "neutral": ["average", "ordinary", "okay", "plain", "usual", "standard"],
}
NOUNS = ["food", "service", "film", "hotel", "room", "staff", "phone"]
SHOTS = (
    "classify each review as positive , negative or neutral . answer with one word only .\n"
    "review : the food was great\nlabel : positive\n"
    "review : the staff was rude\nlabel : negative\n"
    "review : the room was ordinary\nlabel : neutral\n"
    "review : the film was brilliant\nlabel : positive\n"
)


def reviews():
    rows = []
    for label, adjectives in ADJECTIVES.items():
        for adjective in adjectives:
            for noun in NOUNS:
                rows.append((f"{SHOTS}review : the {noun} was {adjective}\nlabel :", label))
    return rows


def label_reward(completions, label, **kwargs):
    scores = []
    for text, gold in zip(completions, label):
        said = text.strip()
        scores.append(1.0 if said == gold else -1.0 if said in LABELS else -1.5)
    return scores


def build():
    rng = random.Random(1)
    rows = reviews()
    tok = word_tokenizer((SHOTS + " ".join(p for p, _ in rows) + " " + " ".join(LABELS)).split())
    model = tiny("qwen2", tok, hidden=64, initializer_range=0.08)
    clean = [encode(tok, prompt, gold, end=False) for prompt, gold in rows]
    teach(model, clean, steps=250, lr=2e-3, pad=tok.pad_token_id)
    unsure = []  # then an unsure annotator, so that the starting policy is right about half of the time
    for _ in range(2000):
        prompt, gold = rng.choice(rows)
        said = gold if rng.random() < 0.25 else rng.choice(LABELS)
        unsure.append(encode(tok, prompt, said, end=False))
    teach(model, unsure, steps=100, lr=2e-3, pad=tok.pad_token_id)

    chosen = rng.sample(rows, 48)
    data = Dataset.from_dict({"prompt": [p for p, _ in chosen], "label": [g for _, g in chosen]})
    args = GRPOConfig(
        **base_args(),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=1,
        max_steps=12,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        loss_type="dr_grpo",
        scale_rewards="none",
        seed=3,
    )
    return GRPOTrainer(
        model=model, processing_class=tok, reward_funcs=label_reward, args=args, train_dataset=data
    )


if __name__ == "__main__":
    build().train()
