"""A pretrained causal language model of transformers (Llama, SmolLM, any with a linear head).

It is fine-tuned in full or with LoRA. The readout of every layer is the model's own final norm and
head. Logits are computed in chunks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cudt.config import models as sections
from cudt.config.schema import NamedSection
from cudt.config.tasks import Alpaca as AlpacaConfig
from cudt.data import hub
from cudt.data.hub import check_vocabulary
from cudt.tasks.alpaca import Alpaca
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.models.causal_network import Causal
    from cudt.tasks.base import Task


Config = sections.Causal


def check(config: Config, task: NamedSection, data_root: Path | None) -> None:
    """Refuse tasks other than instructions, and models that are not available."""
    if not isinstance(task, AlpacaConfig):
        raise UserError(
            f"task.name = '{task.name}': model causal answers instructions; set task.name to alpaca"
        )
    hub.check(config.source, data_root)


def build(config: Config, task: Task, data_root: Path | None) -> Causal:
    """A causal language model for a task that uses its tokenizer."""
    from cudt.models.causal_network import DTYPES, Causal, check_head, decode_plainly

    assert isinstance(task, Alpaca)
    lm = hub.load_causal_lm(config.source, data_root, DTYPES[config.dtype], config.attention)
    check_vocabulary(task.tokenizer, lm.get_input_embeddings().num_embeddings, config.pretrained)
    check_head(lm, config.pretrained)
    decode_plainly(lm)
    model = Causal(lm, config)
    if model.context_length is not None and task.max_length > model.context_length:
        raise UserError(
            f"task.max_length = {task.max_length}: '{config.pretrained}' reads at most "
            f"{model.context_length} tokens; "
            "lower task.max_length"
        )
    return model
