"""`train_musique.py train|evaluate [flags]` is `flatline train|evaluate musique [flags]`."""

from flatline.cli import main_for

if __name__ == "__main__":
    main_for("musique")
