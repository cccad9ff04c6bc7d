"""Exports a trained model as transformers or peft saves it, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config.levels import distribution, scale_of
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from cudt.utils.files import folder_next_to, write_text

if TYPE_CHECKING:
    from cudt.models.layer_losses import LayerwiseLosses

#: What a card says of the objective.
_OBJECTIVES = {
    "erm": "Trained on the loss of its last layer alone.",
    "supervised": "Trained on the mean loss of all layers (deep supervision), without constraints.",
}


def export(run: Run, layerwise: LayerwiseLosses, folder: Path) -> None:
    """Write the run's model, its tokenizer and a card into a new folder, which is complete once it
    is there.
    """
    if folder.exists():
        raise UserError(f"{folder}: already exists; give a new folder")
    with folder_next_to(folder) as made:
        lines = layerwise.model.save_pretrained(made)
        if lines is None:
            name = run.recipe.settings.model.name
            raise UserError(f"model {name} has no format of another library; only cudt loads it")
        if layerwise.task.tokenizer is not None:
            layerwise.task.tokenizer.save_pretrained(made)
        # Replaces peft's own card, which is an empty template.
        write_text(made / "README.md", card(run, made, lines.replace("FOLDER", folder.name)))
        for file in made.iterdir():
            # safetensors writes files that only their owner can read.
            file.chmod(0o644)
        made.replace(folder)


def card(run: Run, folder: Path, lines: str) -> str:
    """The card of an exported model in Markdown; no licence, because that of the base model and of
    the data is not known.
    """
    info = run.finished_info()
    library = "peft" if (folder / "adapter_config.json").is_file() else "transformers"
    base = getattr(run.recipe.settings.model, "pretrained", None)
    asked = "(1 − α_1)·…·(1 − α_l)·f_0" if info.form == "ladder" else "(1 − α_l)·f_(l−1)"
    constrained = (
        f"Every layer was asked to lower the loss, f_l ≤ {asked}, from f_0 = {info.reference:.4g}; "
        f"on validation data the constraints are {'kept' if info.feasible else 'not all kept'}."
    )
    verdicts = (
        f"| {one.layer} | {one.loss:.4g} | {one.allowed:.4g} | {one.verdict} |\n"
        for one in info.verdicts
    )
    return f"""---
library_name: {library}
{f"base_model: {base}" if base else ""}
tags: [cudt, layerwise-descent]
---

# {info.recipe}, {info.objective}

Trained by cudt {info.versions.get("cudt", "")} with the recipe `{info.recipe}`, objective \
`{info.objective}`, seed {info.seed}, on noise of γ = {info.gamma_train:g} (σ = γ·σ_x, \
σ_x = {info.sigma_x.training:.4g}).

{_OBJECTIVES.get(info.objective, constrained)}

| layer | validation loss | allowed | constraint |
|---|---|---|---|
{"".join(verdicts)}{_under_noise(run)}
## Load

With {"peft and transformers" if library == "peft" else "transformers"}; cudt is not needed.

```python
{lines.strip()}
```
"""


def _under_noise(run: Run) -> str:
    """The test metric at each noise level; empty before an evaluation."""
    info, ood = run.finished_info(), run.rows("ood")
    if ood.empty:
        return ""
    better = "higher" if info.metric.higher_is_better else "lower"
    found = f"\n## Under noise ({info.metric.name}, {better} is better)\n\n"
    found += "| noise | level | | value | 95 % interval |\n|---|---|---|---|---|\n"
    means = ood.groupby(["noise", "gamma"], as_index=False)[["value", "low", "high"]].mean()
    for noise, gamma, value, low, high in means.itertuples(index=False):
        level = f"{scale_of(noise).symbol} = {gamma:g}"
        where = distribution(noise, gamma, info.gamma_train)
        interval = f"{low:.4g} to {high:.4g}" if low == low else ""
        found += f"| {noise} | {level} | {where} | {value:.4g} | {interval} |\n"
    return found
