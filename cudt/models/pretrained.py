"""Pretrained models of transformers: layers and final norm are found, states are read by hooks."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cudt.config.models import Lora, PretrainedName
from cudt.data.loader import Batch
from cudt.models.base import LayeredModel, Visit
from cudt.utils.errors import UserError

#: How transformers marks a model that has its hooks.
_HOOKED = "_output_capturing_hooks_installed"
#: A text of five tokens: an odd length, which shows if a model pads its states to a window.
FIVE_TOKENS = {
    "input_ids": torch.arange(5).unsqueeze(0),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
}
Call = tuple[nn.Module, Any, Any]
"""A module, and the first of its inputs and of its outputs."""


# ---------------------------------------------------------------- layers and final norm


@dataclass(frozen=True)
class Anatomy:
    """The layers of a model, and its final norm."""

    layers: tuple[nn.Module, ...]
    """The modules whose outputs are X_1 … X_L; those that share weights are the same module."""
    final_norm: nn.Module | None
    """The norm after the last layer of a pre-norm model, which belongs to every readout."""


def dissect(model: Any, inputs: dict[str, Tensor]) -> Anatomy:
    """Find the layers in one forward pass: the modules whose outputs are the hidden states that the
    model lists. Families name and nest their layers differently, but all list these.
    """
    calls, output = _watched(model, inputs)
    embedding, *states = getattr(output, "hidden_states", None) or (None,)
    # Vision transformers list their last state without the norm, text models with it.
    closed = getattr(output, "last_hidden_state", states[-1] if states else None)
    by_class: dict[type, list[Call]] = {}
    for call in calls:
        by_class.setdefault(type(call[0]), []).append(call)
    # A part of a layer may have the same outputs. The layer that contains it finishes after it.
    ordered = list(reversed(by_class.values()))
    if len(states) == 1:
        # Every module that is called once might be a single layer. A layer's input tells it from
        # the model around it.
        ordered.sort(key=lambda candidates: not _same(candidates[0][1], embedding))
    for candidates in ordered:
        layers, outputs = [call[0] for call in candidates], [call[2] for call in candidates]
        if len(outputs) != len(states) or not all(map(_same, outputs[:-1], states[:-1])):
            continue
        if _same(outputs[-1], closed):
            return Anatomy(tuple(layers), None)
        for module, given, made in calls:
            if _same(given, outputs[-1]) and _same(made, closed):
                return Anatomy(tuple(layers), module)
    raise UserError(
        f"{type(model).__name__}: cannot find the layers that produce its {len(states)} hidden "
        "states, and at most a norm after them"
    )


@torch.no_grad()
def _watched(model: Any, inputs: dict[str, Tensor]) -> tuple[list[Call], Any]:
    """The calls of all modules in one forward pass, in the order in which they finish, and its
    output with hidden states. transformers adds hooks for these, for good, which torch.compile
    cannot trace: they are removed here.
    """
    before = [(one, set(one._forward_hooks), _HOOKED in vars(one)) for one in model.modules()]
    calls: list[Call] = []

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        calls.append((module, first(given), first(output)))

    try:
        with hooked(model.modules(), keep):
            return calls, model(**inputs, output_hidden_states=True)
    except Exception as error:  # models that need other inputs raise many kinds of errors
        what = f"{type(model).__name__} cannot read {', '.join(inputs)}"
        raise UserError(f"{what}: {error}") from None
    finally:
        for module, hooks, was_hooked in before:
            for added in set(module._forward_hooks) - hooks:
                del module._forward_hooks[added]
            if not was_hooked:
                # Otherwise a later call would not add them again, and would list nothing.
                vars(module).pop(_HOOKED, None)


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Inside it, a forward hook is on some modules."""
    with ExitStack() as stack:
        for module in dict.fromkeys(modules):
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def first(value: Any) -> Any:
    """The first tensor of a module's inputs or outputs, which is the hidden state."""
    if isinstance(value, tuple | list):
        return value[0] if value else None
    return value[0] if hasattr(value, "to_tuple") else value


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


# ---------------------------------------------------------------- models


class Pretrained(LayeredModel):
    """A model of transformers whose layers are read by hooks; subclasses register its modules."""

    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()
        self.n_layers = len(anatomy.layers)
        # In a tuple, so that its modules are not registered twice.
        self._anatomy = (anatomy,)

    @abstractmethod
    def run(self, signal: Tensor, batch: Batch) -> None:
        """Run the model on its signal."""

    def visit_layers(self, signal: Tensor, batch: Batch, visit: Visit) -> None:
        def read(layer: nn.Module, given: Any, output: Any) -> None:
            visit(first(output))

        with hooked(self._anatomy[0].layers, read):
            self.run(signal, batch)

    def layer_modules(self) -> list[nn.Module]:
        return list(dict.fromkeys(self._anatomy[0].layers))

    def normed(self, state: Tensor) -> Tensor:
        """The state after a pre-norm model's final norm, which belongs to every readout."""
        norm = self._anatomy[0].final_norm
        return state if norm is None else norm(state)


class PretrainedText(Pretrained):
    """A text model that reads word embeddings: noise comes before positions and the first norm."""

    def __init__(self, backbone: Any, **always: Any) -> None:
        """`always` are arguments of the backbone besides its batch."""
        super().__init__(dissect(backbone.eval(), FIVE_TOKENS))
        self._backbone = (backbone,)
        self._always = always
        inputs = set(inspect.signature(backbone.forward).parameters)
        self._inputs = inputs - {"input_ids", "labels"}

    def signal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        words = self._backbone[0].get_input_embeddings()
        return words(batch["input_ids"]), batch["attention_mask"].bool()

    def run(self, signal: Tensor, batch: Batch) -> None:
        inputs = {name: value for name, value in batch.items() if name in self._inputs}
        self._backbone[0](inputs_embeds=signal, **inputs, **self._always)


def compile_layers(model: LayeredModel) -> None:
    """Compile the forward pass of each layer, in place; names of weights and hooks stay the same.

    A compiled whole would be compiled anew whenever the layers to back-propagate change.
    """
    for module in model.layer_modules():
        module.forward = torch.compile(module.forward)  # hooks run outside of it


# ---------------------------------------------------------------- adapters, and saving


def with_adapters(
    model: Any, lora: Lora, source: PretrainedName, task_type: str | None = None
) -> Any:
    """The model, loaded from `source`, wrapped by peft: only its adapters are trained.

    Linear layers that are frozen before get none: nothing uses their output.
    """
    from peft import LoraConfig, get_peft_model  # takes long

    linear = ((key, part) for key, part in model.named_modules() if isinstance(part, nn.Linear))
    config = LoraConfig(
        task_type=task_type,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=None if lora.targets == "default" else lora.targets,
        exclude_modules=[key for key, part in linear if not part.weight.requires_grad] or None,
    )
    try:
        # The version is stored with the adapter, which loads the same version of its base model.
        return get_peft_model(model, config, revision=source.revision)
    except ValueError as error:
        raise UserError(f"model '{source}', {type(model).__name__}: {error}") from None


def save_adapters(adapted: Any, folder: Path) -> None:
    """Save the adapters for peft, without the model that they adapt."""
    # The default "auto" would ask the hub whether the vocabulary has grown.
    adapted.save_pretrained(folder, save_embedding_layers=False)


def save_encoder(encoder: Any, head: nn.Module | None, folder: Path) -> str:
    """Save an encoder or its adapters, and its readout; returns Python that loads them."""
    read = ""
    if head is not None:
        read = "from safetensors.torch import load_file\n"
        read += 'readout = load_file("FOLDER/readout.safetensors")  # of every layer\n'
        weights = {name: value.detach().cpu() for name, value in head.state_dict().items()}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "readout.safetensors")
    if hasattr(encoder, "peft_config"):
        save_adapters(encoder, folder)
        encoder.config.save_pretrained(folder)  # it has the names of the classes
        return read + loading("peft", "AutoPeftModelForFeatureExtraction")
    encoder.save_pretrained(folder)
    return read + loading("transformers", "AutoModel")


def loading(library: str, name: str) -> str:
    """Python that loads a model from FOLDER."""
    return f'from {library} import {name}\nmodel = {name}.from_pretrained("FOLDER")'
