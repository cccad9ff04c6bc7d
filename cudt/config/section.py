"""A section of a YAML file, such as a recipe: strict, frozen, with the text below each key as its documentation."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class AddedLater:
    """Marks a key that earlier versions did not have: at its default it is not part of a run's identity.

    So the runs of earlier versions stay the same runs.
    """


ADDED_LATER = AddedLater()


class Section(BaseModel):
    """A section of a YAML file. It refuses unknown keys, does not convert text to numbers, and cannot be changed.

    The text below a field is its documentation: `cudt recipes show` and the reference pages print it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def identifying(self) -> dict[str, Any]:
        """Every key that is part of a run's identity, as plain values."""
        values = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if ADDED_LATER in field.metadata and value == field.get_default(call_default_factory=True):
                del values[name]
            elif isinstance(value, Section):
                values[name] = value.identifying()
        return values
