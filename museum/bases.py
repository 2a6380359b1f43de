"""Wheels that older releases were made for, and that the current ones no longer fit."""

OLD_HUB = ("huggingface-hub==0.35.3", "datasets==4.1.1", "accelerate==1.10.1", "peft==0.17.1")

TRANSFORMERS_4 = ("transformers==4.56.2", "tokenizers==0.22.1", *OLD_HUB)
"""For TRL 0.19 to 0.28."""
TRANSFORMERS_4_51 = ("transformers==4.51.3", "tokenizers==0.21.4", *OLD_HUB)
"""For TRL 0.14 to 0.18."""

HUB_1 = ("huggingface-hub==1.8.0", "httpx==0.28.1", "httpcore==1.0.9", "datasets==4.8.4")
TRANSFORMERS_5_5 = ("tokenizers==0.22.2", *HUB_1)
"""For transformers 5.2 to 5.18 itself."""


def without(library: str, wheels: tuple[str, ...]) -> tuple[str, ...]:
    """All but the one that an exhibit is about."""
    return tuple(one for one in wheels if not one.startswith(f"{library}=="))
