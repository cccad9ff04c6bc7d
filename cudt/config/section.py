"""A section of a YAML file, such as a recipe: strict, frozen, with the text below each key as its
documentation.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a YAML file. It refuses unknown keys, does not convert text to numbers, and
    cannot be changed.

    The text below a field is its documentation: `cudt recipes show` and the reference pages print
    it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
