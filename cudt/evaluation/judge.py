"""Judging completions without another model or an API key: how likely a run of plain training finds them.

For a completion y of instruction x, the judge's last layer gives

    log p(y | x) / |y|

without noise, with the prompt of the judge's own task. y is the text of the completion as the judge's tokenizer splits
it, without an end token. An empty completion has no likelihood.

Likelihood rewards repetition: a text that repeats itself is easy to predict. So each completion also has the share of
its 4-grams of tokens that occurred before in it, 1 − (different 4-grams) / (4-grams).
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from cudt.data.batching import n_batches
from cudt.data.loading import batches
from cudt.evaluation import generate
from cudt.evaluation.judged import judge_name
from cudt.method.objectives.base import objective_class
from cudt.models.causal_network import Causal
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs import checksums
from cudt.runs.completions import Completion, CompletionSet, completion_sets, read_completions
from cudt.runs.run import Run
from cudt.runs.tables import TABLES, file_of
from cudt.tasks.alpaca import Alpaca, DialogueTokens
from cudt.tasks.prompts import whole_dialogue
from cudt.training import trained
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError
from cudt.utils.progress import Track
from cudt.utils.shown import as_command

_TABLE = "judged"
_GRAM = 4
#: What rows of one judge about one file of completions share.
_SET = ["instructions", "gamma", "noise_seed", "max_new_tokens", "judge"]

#: A completion of a file: its number, and the digests of its instruction and of its text.
Key = tuple[int, str, str]
#: Number of tokens, mean log-likelihood, share of repeated 4-grams.
Score = tuple[int, float, float]


def check(run: Run) -> None:
    """Refuse a run that is not finished, whose model does not generate text, or that has no completions."""
    generate.check(run)
    if not checksums.is_lost(run.results, file_of(_TABLE)):
        run.check_file(file_of(_TABLE))
    if not completion_sets(run.results):
        command = as_command("generate", run.results, "--instructions", "FILE")
        raise UserError(f"'{run.results}': no completions to judge; run `{command}`")


def check_judge(run: Run) -> None:
    """Refuse a judge that is not a finished run of a causal model whose last layer alone was trained (ERM)."""
    generate.check(run)
    objective = run.recipe.settings.objective
    if objective_class(objective).reads_all_layers:
        raise UserError(f"--by '{run.path}': has objective {objective}; a judge is a run with objective erm")


def repeated_share(tokens: Sequence[int]) -> float:
    """The share of 4-grams that occurred before in the text: 0 for fewer than four tokens, nan for none."""
    if not tokens:
        return math.nan
    grams = [tuple(tokens[start : start + _GRAM]) for start in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass
class Judge:
    """A run that scores completions; its model is loaded when the first one needs it. `check_judge` the run first."""

    run: Run
    device: DeviceName = "auto"
    data_root: Path | None = None
    batch_size: int = 8

    @property
    def name(self) -> str:
        return judge_name(self.run)

    def judge(self, run: Run, track: Track) -> pd.DataFrame:
        """Write judged.csv of a run, and return this judge's rows; completions that have a row are skipped.

        Rows of other judges stay. `check` the run first, and hold its lock.
        """
        checksums.forget_lost(run.results, file_of(_TABLE))
        for one in completion_sets(run.results):
            completions = read_completions(one.path(run.results))
            if completions:
                rows = self._rows(run, one, completions, track)
                run.merge_table(_TABLE, pd.DataFrame(rows, columns=TABLES[_TABLE]), _SET)
        judged = run.read_table(_TABLE)
        return judged[judged["judge"] == self.name].reset_index(drop=True)

    def is_done(self, run: Run) -> bool:
        """Whether every completion of a run has a row of this judge."""
        return all(
            {*_known(run, one, self.name)} >= {*_keys(read_completions(one.path(run.results)))}
            for one in completion_sets(run.results)
        )

    def _rows(
        self, run: Run, of: CompletionSet, completions: Sequence[Completion], track: Track
    ) -> list[tuple[Any, ...]]:
        """A row for each completion of a file, in order; known ones are not judged again."""
        known, keys = _known(run, of, self.name), _keys(completions)
        new = [(key, one) for key, one in zip(keys, completions, strict=True) if key not in known]
        if new:
            scores = self.scores([one for _, one in new], track, f"{run.label} γ = {of.gamma:g}")
            known |= {key: score for (key, _), score in zip(new, scores, strict=True)}
        return [
            (of.instructions, of.gamma, of.noise_seed, of.max_new_tokens, *key, self.name, *known[key]) for key in keys
        ]

    def scores(self, completions: Sequence[Completion], track: Track, what: str = "completions") -> list[Score]:
        """For each completion: its number of tokens, its mean log-likelihood, and its share of repeated 4-grams."""
        dialogues = [self._tokens(number, one) for number, one in enumerate(completions)]
        likelihoods = self._likelihoods([one for one in dialogues if len(one.tokens) > one.start], track, what)
        scores = []
        for one in dialogues:
            written = one.tokens[one.start :].tolist()
            scores.append((len(written), likelihoods.get(one.id, math.nan), repeated_share(written)))
        return scores

    @torch.no_grad()
    def _likelihoods(self, dialogues: Sequence[DialogueTokens], track: Track, what: str) -> dict[str, float]:
        """log p(y | x) / |y| by the id of a dialogue: minus the loss of the last layer."""
        if not dialogues:
            return {}
        layerwise, found = self._layerwise, dict[str, float]()
        device = next(layerwise.parameters()).device
        read = batches(layerwise.task, dialogues, self.batch_size, device)
        for batch in track(read, n_batches(dialogues, self.batch_size), what):
            (losses,) = layerwise(batch, layers=[layerwise.model.n_layers])
            found.update(zip(batch["ids"], (-losses).tolist(), strict=True))
        return found

    def _tokens(self, number: int, completion: Completion) -> DialogueTokens:
        model, task = self._layerwise.model, self._layerwise.task
        assert isinstance(model, Causal)
        assert isinstance(task, Alpaca)
        most = model.context_length or sys.maxsize
        dialogue = whole_dialogue(task.tokenizer, completion["instruction"], completion["output"], most)
        if dialogue is None:
            raise UserError(
                f"the completion of '{completion['instruction'][:40]}' and its prompt do not fit into the {most} "
                f"tokens that judge '{self.run.path}' reads; use a judge with a longer context"
            )
        tokens = np.asarray(dialogue.prompt.tokens + dialogue.response, np.int32)
        return DialogueTokens(str(number), tokens, len(dialogue.prompt.tokens))

    @cached_property
    def _layerwise(self) -> LayerwiseLosses:
        return trained.load(self.run, self.device, self.data_root)


def _known(run: Run, of: CompletionSet, judge: str) -> dict[Key, Score]:
    """What a judge wrote about a file of completions, by completion."""
    rows = run.read_table(_TABLE)
    wanted = (of.instructions, of.gamma, of.noise_seed, of.max_new_tokens, judge)
    for name, value in zip(_SET, wanted, strict=True):
        rows = rows[rows[name] == value]
    columns = ("number", "instruction", "completion", "tokens", "log_likelihood", "repeated")
    return {
        (number, instruction, completion): (tokens, likelihood, repeated)
        for number, instruction, completion, tokens, likelihood, repeated in zip(
            *(rows[name].tolist() for name in columns), strict=True
        )
    }


def _keys(completions: Sequence[Completion]) -> list[Key]:
    """The number of each completion in its file, with digests of its instruction and of its text."""
    return [(number, _digest(one["instruction"]), _digest(one["output"])) for number, one in enumerate(completions, 1)]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
