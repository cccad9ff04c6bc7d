"""The names under which values of layers are logged in other people's loops."""

from __future__ import annotations


def layer_key(name: str, layer: int) -> str:
    """`loss/layer_03`: trackers group by what is before the slash."""
    return f"{name}/layer_{layer:02}"
