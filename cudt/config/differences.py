"""What sets recipes apart, and how settings are written: variants are named by their settings,
never by a hash.
"""

from __future__ import annotations

from collections import Counter
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
#: Variants that differ in more settings are named by the fewest of them that tell all apart.
_MOST_NAMED = 2
#: Settings by dotted key.
Settings = Mapping[str, Any]


def flat_settings(recipe: NamedRecipe) -> dict[str, Any]:
    """Every setting that shapes training, by dotted key; without name, seed and objective."""
    return flat_values(recipe.resolved())


def flat_values(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the values of a recipe that are not validated, as a run folder keeps them."""
    shaping = shaping_values(resolved, "name", "seed", "objective")
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in shaping.items()
    }


def differing_keys(variants: Sequence[Settings]) -> list[str]:
    """The keys in which variants differ, in the order of the recipe."""
    keys = dict.fromkeys(key for settings in variants for key in settings)
    return [key for key in keys if len({settings.get(key) for settings in variants}) > 1]


def names_apart(variants: Sequence[Settings]) -> list[str]:
    """A short name for each variant, like `α=0.3, L=5`: the settings in which they differ.

    Where these are many, the fewest that tell all variants apart, and of these only the values that
    most variants do not have. A single variant needs no name; variants with the same settings are
    numbered.
    """
    if len(variants) < 2:
        return [""] * len(variants)
    keys = _telling_keys(variants)
    usual = _usual_values(variants, keys) if len(keys) > _MOST_NAMED else {}
    texts = [
        {key: value_text(settings.get(key)) for key in keys if _is_named(key, settings)}
        for settings in variants
    ]
    names = [
        ", ".join(f"{symbol(key)}={text}" for key, text in mine.items() if text != usual.get(key))
        for mine in texts
    ]
    if len(set(names)) == len(names):
        return names
    return [f"{name} #{names[: index + 1].count(name)}".strip() for index, name in enumerate(names)]


def _is_named(key: str, settings: Settings) -> bool:
    """False for `descent.alpha` in settings that have `descent.alpha.target_loss` instead, and the
    other way round.
    """
    others = [one for one, value in settings.items() if value is not None]
    return key in settings or not any(
        one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in others
    )


def _telling_keys(variants: Sequence[Settings]) -> list[str]:
    """All differing keys where they are few, else the fewest (chosen greedily) by whose values all
    variants differ.
    """
    differing = differing_keys(variants)
    if len(differing) <= _MOST_NAMED:
        return differing
    chosen: list[str] = []

    def count(keys: Sequence[str]) -> int:
        return len({tuple(value_text(settings.get(key)) for key in keys) for settings in variants})

    while count(chosen) < count(differing):
        chosen.append(max(differing, key=lambda key: count([*chosen, key])))
    return [key for key in differing if key in chosen]


def _usual_values(variants: Sequence[Settings], keys: Sequence[str]) -> dict[str, str]:
    """The value that more than half of the variants have, by key; a name without the key then
    stands for it.
    """
    counts = {
        key: Counter(value_text(settings.get(key)) for settings in variants).most_common(1)[0]
        for key in keys
    }
    return {key: text for key, (text, count) in counts.items() if 2 * count > len(variants)}


def without_descent(settings: Settings) -> dict[str, Any]:
    """The settings that change an ERM run: those of the constraints do not."""
    return {key: value for key, value in settings.items() if not key.startswith("descent.")}


def symbol(key: str) -> str:
    """A setting's letter in the paper, or the last part of its key."""
    return SYMBOLS.get(key, key.rpartition(".")[2])


def value_text(value: Any) -> str:
    """A setting's value in a few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return f"{value:.12g}"
    return short_path(str(value))


def short_path(text: str) -> str:
    """The last part of the path of a pretrained model; of `package:name/folder`, the package."""
    if text.startswith("package:"):
        return text.removeprefix("package:").partition("/")[0]
    return text.rpartition("/")[2]
