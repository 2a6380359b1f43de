"""Shared small things: character tokenizers, tiny models, a short supervised warm start, default arguments."""

import os
import random
import string
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def char_tokenizer(chat=False, extra=(), pad="<pad>", eos="</s>"):
    """One token a character, plus the special ones."""
    special = list(dict.fromkeys([pad, eos, "<unk>"])) + (ROLES if chat else []) + list(extra)
    chars = string.ascii_lowercase + string.ascii_uppercase + string.digits + " \n+-*/=?.,:;!%()|<>#"
    vocab = {t: i for i, t in enumerate(special)}
    for c in chars:
        vocab[c] = len(vocab)
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tok = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=pad, eos_token="<|end|>" if chat else eos, unk_token="<unk>",
        padding_side="left", clean_up_tokenization_spaces=False,
        additional_special_tokens=(ROLES if chat else []) + list(extra),
    )
    if chat:
        tok.chat_template = CHAT
    return tok


def tiny_llama(tok, hidden=48, layers=2, tied=False, seed=0):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=tied,
        bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
    ))


def teach(model, tok, pairs, steps=200, lr=4e-3, batch=48, noise=0.4, seed=0, end=None):
    """Supervised warm start on (prompt text, answer text); a share of the targets is drawn at random."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pool = [a for _, a in pairs]
    end = tok.eos_token_id if end is None else end
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, steps)
    model.train()
    for _ in range(steps):
        rows = []
        for p, a in (rng.choice(pairs) for _ in range(batch)):
            a = rng.choice(pool) if rng.random() < noise else a
            p, a = tok(p)["input_ids"], tok(a)["input_ids"] + [end]
            rows.append((p + a, [-100] * len(p) + a))
        width = max(len(x) for x, _ in rows)
        ids = torch.tensor([[tok.pad_token_id] * (width - len(x)) + x for x, _ in rows])
        att = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x, _ in rows])
        lab = torch.tensor([[-100] * (width - len(y)) + y for _, y in rows])
        loss = model(input_ids=ids, attention_mask=att, labels=lab).loss
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
    return model


def common(**over):
    """Arguments that every trainer here shares."""
    base = dict(
        output_dir=tempfile.mkdtemp(), bf16=False, use_cpu=True, report_to="none", save_strategy="no",
        logging_steps=1, max_steps=10, per_device_train_batch_size=16, num_generations=8,
        max_completion_length=8, learning_rate=1e-3, seed=7, disable_tqdm=True,
    )
    base.update(over)
    return base


def sums(limit=10):
    """[(question, answer)] of one-digit additions."""
    return [(f"{a}+{b}=", str(a + b)) for a in range(limit) for b in range(limit)]


def half_right(tok, pairs, wrong, right=0.5, copies=20, seed=0, end=True):
    """[(prompt ids, answer ids)] in which the answer is right with that probability and else `wrong(rng, answer)`."""
    rng = random.Random(seed)
    rows = []
    for prompt, answer in pairs:
        for _ in range(copies):
            said = answer if rng.random() < right else wrong(rng, answer)
            rows.append((tok(prompt)["input_ids"], tok(said)["input_ids"] + ([tok.eos_token_id] if end else [])))
    return rows


def teach_rows(model, rows, pad, steps=400, lr=2e-3, batch=32, seed=0):
    """Supervised warm start on rows of ids; the loss is on the answers only."""
    rng = random.Random(seed)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    model.train()
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 10) * (1 - step / steps)
        chosen = rng.choices(rows, k=batch)
        width = max(len(h) + len(t) for h, t in chosen)
        ids = torch.tensor([[pad] * (width - len(h + t)) + h + t for h, t in chosen])
        att = torch.tensor([[0] * (width - len(h + t)) + [1] * len(h + t) for h, t in chosen])
        lab = torch.tensor([[-100] * (width - len(t)) + t for h, t in chosen])
        loss = model(input_ids=ids, attention_mask=att, labels=lab).loss
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
    model.eval()
    if os.environ.get("MATERIAL_VERBOSE"):
        print("teach_rows: last loss", round(loss.item(), 3))
    return model


def off_by_some(rng, answer):
    """A sum that is off by one or two."""
    return str(abs(int(answer) + rng.choice([-2, -1, 1, 2])))


def on_disk(model, tok):
    """A checkpoint directory."""
    path = tempfile.mkdtemp()
    model.save_pretrained(path)
    tok.save_pretrained(path)
    return path


def words(count, letters="abcdefgh", size=3, seed=1):
    """Different words without a repeated letter, in random order."""
    rng = random.Random(seed)
    out = set()
    while len(out) < count:
        out.add("".join(rng.sample(letters, size)))
    out = sorted(out)
    rng.shuffle(out)
    return out


def one_letter_wrong(rng, answer, letters="abcdefgh"):
    out = list(answer)
    i = rng.randrange(len(out))
    out[i] = rng.choice([c for c in letters if c != out[i]])
    return "".join(out)
