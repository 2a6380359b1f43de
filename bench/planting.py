"""What is planted: every fault as it is, milder or otherwise, on a second task, and in pairs."""

MILDER: dict[str, float] = {
    "mask-as-attention": 0.3,
    "tool-tokens-trained": 0.3,
    "only-tool-tokens-trained": 0.5,
    "assistant-tokens-masked": 0.25,
    "mask-off-by-one": -1,  # to the other side
    "end-token-untrained": 0.5,
    "kl-wrong-reference": 0.2,
    "kl-sign": 3,  # stronger: with little KL its sign hardly matters
    "kl-heavy": 1,
    "context-cut": 20,
    "reward-noise": 0.5,
    "judge-failing": 0.2,
    "slow-dropped": 0.25,
    "drafts-accepted": 0.5,
    "sampler-other-adapter": 0.02,
    "reward-conflict": 2,
    "adapter-frozen": 0.5,
    "sampler-every-n": 4,
    "adapter-merged-twice": 0.5,
    "later-turns-lost": 2,
    "eval-other-path": 3,
    "generation-prompt-missing": 0.5,
    "retokenised": 0.5,
    "sampler-temperature": 1.4,
    "sampler-top-k": 4,
    "dropout-in-scoring": 0.03,
    "learning-rate-low": 30,
    "learning-rate-high": 10,
    "optimizer-not-stepping": 0.5,
    "zero-variance": 0.05,
    "groups-mixed": 0.5,
    "prompts-duplicated": 2,
    "parser-broken": 0.5,
    "sorted-with-hop-factor": 0.5,
    "advantage-noise": 0.001,
    "earlier-turns-stripped": 0.25,
    "turn-limit-low": 24,
    "finished-left-out": 0.5,
    "padding-attended": 0.5,
    "first-token-doubled": 3,  # stronger: one more token costs little
    "merge-rounded": 3,
    "prefix-cache-stale": 10,
    "sampler-rounded": 2,
    "sequence-weights": 0.5,
    "updates-rounded": 2,
    "gradient-clip-low": 1e-7,
    "accumulation-undivided": -1,  # divided once too often
    "clip-tight": 1e-3,
    "entropy-penalised": 0.1,
    "kl-anchor": 0.3,
    "samples-duplicated": 2,
    "length-weighted": 1.5,
    "calls-punished": 0.1,
    "format-paid": 1,
    "excess-paid": 0.5,
    "hop-factor": 0.5,
    "tool-failing": 0.25,
    "calls-unread": 0.5,
    "turns-too-few": 4,
    "shortcut-paid": 0.6,
    "policy-noised": 0.25,
    "log-smoothed": 0.7,
    "packed-unmasked": 0.34,  # one border of three
    "experts-rerouted": 3,
    "sampler-requantised": 9,
    "shards-apart": 0.34,
}
"""Fault -> a second strength, milder unless said; a fault that takes no strength is not here."""

MUSIQUE_ONLY = ("excess-paid", "hop-factor", "sorted-with-hop-factor", "verifiers-0.1.3")
"""Faults of what only MuSiQue has."""

PAIRS: tuple[str, ...] = (
    "mask-as-attention+generation-prompt-missing",
    "mask-as-attention+sorted-with-hop-factor",
    "tool-schema-missing+sorted-with-hop-factor",
    "kl-wrong-reference+parser-broken",
    "tool-tokens-trained+reward-noise",
    "sampler-every-n+groups-mixed",
    "learning-rate-low+format-paid",
    "retokenised+calls-punished",
    "dropout-in-scoring+prompts-duplicated",
    "turn-limit-low+samples-duplicated",
)
"""Faults that can be planted together; the first three are of the verifiers-0.1.3 preset."""

QUICK: tuple[str, ...] = (
    "mask-as-attention",
    "tool-tokens-trained",
    "sampler-never-updated",
    "learning-rate-high",
    "groups-mixed",
    "parser-broken",
)
"""A few of different kinds, each seen within ten steps."""
