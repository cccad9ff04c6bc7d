"""What sets recipes apart, and how settings are written: variants are named by their settings,
never by a hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudt.config.recipe import NamedRecipe, shaping_values

#: The paper's letters for settings that often differ.
SYMBOLS = {
    "descent.alpha": "α",
    "descent.dual.learning_rate": "η₂",
    "descent.beta": "β",
    "descent.reference": "f₀",
    "noise.gamma_train": "γ_train",
    "model.layers": "L",
    "training.learning_rate": "η₁",
}
#: Settings by dotted key.
Settings = Mapping[str, Any]


def flat_settings(recipe: NamedRecipe) -> dict[str, Any]:
    """Every setting that shapes training, by dotted key; without name, seed and objective."""
    return flat_values(recipe.resolved())


def flat_values(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the values of a recipe that are not validated, as a run folder keeps them."""
    shaping = shaping_values(resolved, "name", "seed", "objective")
    return {key: tuple(one) if isinstance(one, list) else one for key, one in shaping.items()}


def differing_keys(variants: Sequence[Settings]) -> list[str]:
    """The keys in which variants differ, in the order of the recipe."""
    keys = dict.fromkeys(key for settings in variants for key in settings)
    return [key for key in keys if len({settings.get(key) for settings in variants}) > 1]


def names_apart(variants: Sequence[Settings]) -> list[str]:
    """A short name for each variant, like `α=0.3, L=5`: the settings in which they differ; of more
    than two, the fewest, chosen greedily, that tell all apart. What still has the same name is
    numbered.
    """
    differing = differing_keys(variants)
    chosen = differing if len(differing) <= 2 else []

    def texts(keys: Sequence[str]) -> list[str]:
        return [
            ", ".join(f"{symbol(key)}={value_text(one.get(key))}" for key in keys)
            for one in variants
        ]

    while len(set(texts(chosen))) < len(set(texts(differing))):
        chosen = [*chosen, max(differing, key=lambda key: len(set(texts([*chosen, key]))))]
    names, named = texts([key for key in differing if key in chosen]), dict[str, list[Settings]]()
    for name, one in zip(names, variants, strict=True):
        if one not in (same := named.setdefault(name, [])):
            same.append(one)
    return [
        name if len(named[name]) == 1 else f"{name} #{named[name].index(one) + 1}".strip()
        for name, one in zip(names, variants, strict=True)
    ]


def symbol(key: str) -> str:
    """A setting's letter in the paper, or the last part of its key."""
    return SYMBOLS.get(key, key.rpartition(".")[2])


def value_text(value: Any) -> str:
    """A setting's value in a few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.12g}" if isinstance(value, int | float) else short_path(str(value))


def short_path(text: str) -> str:
    """The last part of the path of a pretrained model; of `package:name/folder`, the package."""
    if text.startswith("package:"):
        return text.removeprefix("package:").partition("/")[0]
    return text.rpartition("/")[2]
