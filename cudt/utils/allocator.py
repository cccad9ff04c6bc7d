"""The memory allocator of the C library, tuned for steps that free and ask for the same memory again and again."""

from __future__ import annotations

import ctypes
import functools
import sys

#: Options of mallopt (malloc.h of glibc).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_GIGABYTE = 1 << 30


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; returns whether the C library can do so (only glibc can).

    By default glibc gives large blocks back to the system when they are freed. Each step of training then gets them
    anew, and the system clears every page of them again: about 4 % of the CPU time of a step of MiniLM. Results do not
    change; fragments may add a little to the peak of memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _GIGABYTE) and mallopt(_M_TRIM_THRESHOLD, 2 * _GIGABYTE - 1))
