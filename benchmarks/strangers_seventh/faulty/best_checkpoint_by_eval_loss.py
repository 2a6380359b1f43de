"""load_best_model_at_end is on, but metric_for_best_model is left at its default, the evaluation loss. In GRPO that loss is about
zero plus beta times the KL, so it rises as the policy learns: here the first checkpoint wins, is restored at the end, and
what was learned after it is thrown away.
say: the best checkpoint is chosen by eval loss (the default of metric_for_best_model), which says nothing about the quality of a GRPO policy; it should be eval_reward with greater_is_better=True.
"""

from datasets import Dataset
from material import char_tokenizer, common, half_right, on_disk, one_letter_wrong, teach_rows, tiny_llama, words
from trl import GRPOConfig, GRPOTrainer


def shifted(word):
    return "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in word)


def shared_letters(completions, answer, **kwargs):
    """1 for the right word, else up to 0.3 for letters at their place."""
    scores = []
    for text, gold in zip(completions, answer):
        share = sum(a == b for a, b in zip(text, gold)) / len(gold)
        scores.append(1.0 if text == gold else 0.3 * share)
    return scores


def rows_of(pairs):
    return Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a for _, a in pairs]})


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    pairs = [(f"shift {w}: ", shifted(w)) for w in words(140, seed=4)]
    train, held_out = pairs[:120], pairs[120:136]
    teach_rows(model, half_right(tok, train, one_letter_wrong, right=0.35), tok.pad_token_id, steps=350)
    args = GRPOConfig(
        **common(
            loss_type="grpo",
            beta=0.04,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=64,
            num_generations_eval=4,
            learning_rate=6e-4,
            max_steps=12,
            eval_strategy="steps",
            eval_steps=3,
            save_strategy="steps",
            save_steps=3,
            save_total_limit=2,
            load_best_model_at_end=True,
        )
    )
    return GRPOTrainer(
        on_disk(model, tok),
        shared_letters,
        args=args,
        train_dataset=rows_of(train),
        eval_dataset=rows_of(held_out),
        processing_class=tok,
    )
