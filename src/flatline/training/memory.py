"""Freed memory stays with the process instead of going back to the system after every pass.

On a CPU the tensors of a pass are large enough that glibc hands each back when it is freed and
asks for it again in the next pass, page by page: around 100,000 page faults a step of the lab, and
how many depends on what small thing happens to lie between two large ones. A training needs the
same amount again a moment later.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_LARGE = 1 << 30


def keep_freed_memory() -> None:
    """For the rest of this process; does nothing where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, 2 * _LARGE - 1)
    mallopt(_TOP_PAD, _LARGE // 4)
