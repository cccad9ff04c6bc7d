"""The splits of a dataset, and values for each split that are made on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Literal, TypeVar

Split = Literal["train", "validation", "test"]
#: The splits that training and sweeps use.
SEEN: tuple[Split, ...] = ("train", "validation")
SPLITS: tuple[Split, ...] = (*SEEN, "test")

Value = TypeVar("Value")


class OnDemand(Mapping[Split, Value], Generic[Value]):
    """A value for each split, made on first use: a run that is never tested never reads the test
    data.
    """

    def __init__(self, splits: Iterable[Split], make: Callable[[Split], Value]) -> None:
        self._splits = tuple(splits)
        self._make = make
        self._made: dict[Split, Value] = {}

    def __getitem__(self, split: Split) -> Value:
        if split not in self._splits:
            raise KeyError(split)
        if split not in self._made:
            self._made[split] = self._make(split)
        return self._made[split]

    def __iter__(self) -> Iterator[Split]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)
