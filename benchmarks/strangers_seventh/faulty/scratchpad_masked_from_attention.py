"""The subclass wants no gradient on the scratchpad before `;` and zeroes completion_mask there, but TRL also uses completion_mask as
attention mask in the training forward. The answer's log-probabilities are computed as if the scratchpad did not exist, while it
was sampled with it in view, so the gradient trains a different conditional distribution than the policy that answers.
say: zeroing completion_mask for the scratchpad also hides those tokens from attention in the training forward (it should be a loss-only mask such as tool_mask), so the log-probabilities of the answer are not those of the sampling policy.
"""

from datasets import Dataset
from material import char_tokenizer, common, half_right, one_letter_wrong, teach_rows, tiny_llama, words
from trl import GRPOConfig, GRPOTrainer


class AnswerOnlyTrainer(GRPOTrainer):
    """Credits the tokens after the separator only; completions without one are trained whole."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        ids, mask = batch["completion_ids"], batch["completion_mask"]
        separator = self.processing_class.convert_tokens_to_ids(";")
        answer = ((ids == separator).cumsum(1) > 0) & (ids != separator)
        has_answer = answer.any(1, keepdim=True)
        mask = mask * (answer | ~has_answer).to(mask.dtype)
        batch["completion_mask"] = mask
        batch["num_items_in_batch"] = mask.sum()
        return batch


def last_part(completions, answer, **kwargs):
    return [1.0 if ";" in text and text.split(";")[-1] == gold else 0.0 for text, gold in zip(completions, answer)]


def shifted(word):
    return "".join(chr((ord(c) - 97 + 1) % 8 + 97) for c in word)


def half_right_answer(rng, text):
    work, answer = text.split(";")
    return work + ";" + one_letter_wrong(rng, answer)


def build():
    tok = char_tokenizer()
    model = tiny_llama(tok, hidden=96)
    pairs = [(f"code {w}: ", shifted(w) + ";" + shifted(shifted(w))) for w in words(120)]
    teach_rows(model, half_right(tok, pairs, half_right_answer, right=0.5), tok.pad_token_id, steps=400)
    dataset = Dataset.from_dict({"prompt": [p for p, _ in pairs], "answer": [a.split(";")[1] for _, a in pairs]})
    args = GRPOConfig(**common(per_device_train_batch_size=64, learning_rate=2e-4, max_completion_length=10, max_steps=12))
    return AnswerOnlyTrainer(model, last_part, args=args, train_dataset=dataset, processing_class=tok)
