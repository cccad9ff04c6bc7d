"""Numbers as text."""

from __future__ import annotations


def short_number(value: float) -> str:
    """The number with four decimals, fewer if it is large."""
    return (
        f"{value:.4f}"
        if abs(value) < 10
        else f"{value:.2f}"
        if abs(value) < 1000
        else f"{value:.4g}"
    )
