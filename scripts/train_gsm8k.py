"""`train_gsm8k.py train|evaluate [flags]` is `flatline train|evaluate gsm8k [flags]`."""

from flatline.cli import main_for

if __name__ == "__main__":
    main_for("gsm8k")
