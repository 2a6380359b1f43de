"""Text that is safe to print: what the terminal shares with the pages."""

from flatline.text import shortened, visible

__all__ = ["shortened", "visible"]
