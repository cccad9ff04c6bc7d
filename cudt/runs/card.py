"""The card of an exported or uploaded model: metadata that the Hugging Face hub reads, results, how
to load it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run

#: What a card says of the objective: Jinja templates with `info`, the contents of run.json.
OBJECTIVES = {
    "erm": "Trained on the loss of its last layer alone, for comparison.",
    "supervised": "Trained on the mean loss of all layers (deep supervision), without constraints, "
    "for comparison.",
    "constrained": "Every layer was asked to lower the loss, f_l ≤ "
    '{{ "(1 − α_1)·…·(1 − α_l)·f_0" if info.form == "ladder" else "(1 − α_l)·f_{l−1}" }}, '
    'from f_0 = {{ "%.4g" | format(info.reference) }}. On validation data the constraints are\n'
    '{{ "kept" if info.feasible else "not all kept" }}, and '
    '{{ "every layer lowers the loss" if info.monotone else "not every layer lowers the loss" }}.',
}
#: What loads a model.
Library = Literal["transformers", "peft", "cudt"]
_CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class NoiseResult:
    """The test metric at one level of noise, with the ends of its interval."""

    noise: str
    symbol: str
    """The symbol of the level: γ or p."""
    level: float
    place: str
    """ID or OOD."""
    value: float
    low: float
    """NaN if the run has no intervals."""
    high: float
    n: int

    @property
    def interval(self) -> str:
        """The interval in words; empty if there is none."""
        return f"{self.low:.4g} to {self.high:.4g}" if math.isfinite(self.low + self.high) else ""


@dataclass(frozen=True)
class TestedOn:
    """The test data of the results, as the hub calls them."""

    task: str
    dataset: str
    name: str
    subset: str | None
    split: str


@dataclass(frozen=True)
class CardFigure:
    """A picture next to the card."""

    file: str
    title: str


@dataclass(frozen=True)
class Card:
    """What a card says besides the run itself."""

    library: Library
    base: str | None
    """The pretrained model that the run started from."""
    lines: str
    """Python code that loads the model."""
    repository: str | None = None
    """The name on the hub; None for the card in the run folder."""
    tested_on: TestedOn | None = None
    results: Sequence[NoiseResult] = ()
    figure: CardFigure | None = None

    def text(self, run: Run) -> str:
        """The card of a run in Markdown."""
        loader = PackageLoader("cudt.runs", ".")
        environment = Environment(
            loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
        )
        table, info = run.read_table("layers"), run.finished_info()
        return environment.get_template("model_card.md").render(
            **vars(self),
            metadata=self._metadata(info),
            info=info,
            objective=environment.from_string(OBJECTIVES.get(info.objective, "")).render(info=info),
            layers=table[table["split"] == "validation"].to_dict("records"),
            verdicts={one.layer: one for one in info.verdicts},
        )

    def _metadata(self, info: FinishedInfo) -> str:
        """What the hub reads, in YAML; no license, because that of the base model and of the data
        is not known.
        """
        from huggingface_hub import EvalResult, ModelCardData

        found = [self._eval_result(info, one) for one in self.results if math.isfinite(one.value)]
        results = [EvalResult(**one) for one in found] if self.tested_on else []
        return ModelCardData(
            library_name=self.library,
            base_model=self.base,
            tags=["cudt", "layerwise-descent"],
            model_name=(self.repository or info.recipe).split("/")[-1] if results else None,
            eval_results=results or None,
        ).to_yaml()

    def _eval_result(self, info: FinishedInfo, result: NoiseResult) -> dict[str, object]:
        on = self.tested_on
        assert on is not None
        return {
            "task_type": on.task,
            "dataset_type": on.dataset,
            "dataset_name": on.name,
            "dataset_config": on.subset,
            "dataset_split": on.split,
            "dataset_revision": info.revisions.get("task"),
            "metric_type": info.metric.name.lower(),
            "metric_name": f"{info.metric.name} under {result.noise} noise, {result.symbol} = {result.level:g}",
            "metric_value": round(result.value, 6),
            "metric_args": {
                "noise": result.noise,
                "gamma" if result.symbol == "γ" else result.symbol: result.level,
            },
        }


def code_in(file: Path) -> str | None:
    """The Python code of a card that loads its model; None if the card has none."""
    found = _CODE.search(file.read_text(encoding="utf-8"))
    return None if found is None else found[1]
