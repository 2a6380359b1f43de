"""`python -m flatline`, and `accelerate launch -m flatline run train.py`."""

from flatline.cli import main

if __name__ == "__main__":
    main()
