"""The recipe of a run that `DescentTrainer` trained: its settings, as far as a recipe can say them.

What it cannot say is in `model.trained_by`, so that different trainings are different runs.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.models.auto import modeling_auto

from cudt.config.names import checked_name
from cudt.config.recipe import NamedRecipe, validate
from cudt.data import hub
from cudt.data.stored_examples import Kind
from cudt.models.backbone import unwrapped
from cudt.runs.export import FOLDER
from cudt.utils.errors import UserError

#: The folder of the stored examples, in the run folder.
DATA = "data"
_OPTION = "report_to_cudt"
_HEADS: dict[Kind, Any] = {
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "tokens": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
_SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
_FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16"}
#: Arguments that change training and have no key in a recipe.
_UNSAID = (
    *("max_steps", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_kwargs", "fp16"),
    *("data_seed", "neftune_noise_alpha", "label_smoothing_factor", "dataloader_drop_last"),
)


def kind_of(model: Any) -> Kind:
    """What has a label; a UserError for models that cudt cannot load again."""
    inner: Any = unwrapped(model)
    for kind, classes in _HEADS.items():
        if type(inner).__name__ in classes.values():
            if kind != "causal" and inner.config.problem_type not in (None, "single_label_classification"):
                raise UserError(f"{_OPTION}: {inner.config.problem_type} has no classes; leave {_OPTION} out")
            return kind
    raise UserError(
        f"{_OPTION}: {type(inner).__name__} is none of the classifiers and causal language models of transformers, so "
        f"cudt cannot load it again; leave {_OPTION} out"
    )


def recipe_of(trainer: Any) -> NamedRecipe:
    """The recipe of a trainer's run, whose model and data are in the run folder itself."""
    args, kind = trainer.args, kind_of(trainer.model)
    config: Any = unwrapped(trainer.model).config
    name = args.run_name or f"{config.model_type}-{kind}"
    values = {
        "task": {
            "name": "stored",
            "folder": DATA,
            "kind": kind,
            "classes": None if kind == "causal" else config.num_labels,
            "pad": _pad(trainer, config),
        },
        "model": {
            "name": "headed",
            "pretrained": f"run:{FOLDER}",
            "dtype": _number_format(trainer.model),
            "trained_by": _trained_by(trainer),
            "trained_from": config.name_or_path or None,
        },
        "objective": trainer.objective_name,
        "descent": trainer.descent_settings.model_dump(),
        "noise": {"kind": trainer.noise.kind, "gamma_train": trainer.noise.gamma},
        "training": _training(args),
        "evaluation": {"batch_size": args.per_device_eval_batch_size},
        "checkpoints": {"keep": _select(args)},
        "seed": args.seed,
    }
    return NamedRecipe(checked_name(name, "run_name"), validate(values, _OPTION))


def check_base(model: Any) -> None:
    """Refuse an adapter on a model that cannot be found again."""
    if not hasattr(model, "active_peft_config"):
        return
    base = model.active_peft_config.base_model_name_or_path
    if not base:
        raise UserError(
            f"{_OPTION}: the model below the adapter was not loaded from a folder or the hub, so cudt cannot load it "
            "again; save it with save_pretrained and load it from there"
        )
    hub.check(base, None)


def _pad(trainer: Any, config: Any) -> int:
    own = getattr(config, "pad_token_id", None)
    return own if own is not None else getattr(trainer.processing_class, "pad_token_id", None) or 0


def _number_format(model: Any) -> str:
    dtype = unwrapped(model).dtype
    if dtype not in _FORMATS:
        raise UserError(f"{_OPTION}: the weights are in {dtype}; cudt evaluates float32 and bfloat16")
    return _FORMATS[dtype]  # type: ignore[index]


def _select(args: TrainingArguments) -> str:
    return "best" if args.load_best_model_at_end else "last"


def _training(args: TrainingArguments) -> dict[str, Any]:
    schedule = _SCHEDULES.get(_word(args.lr_scheduler_type), "constant")
    every = args.logging_steps
    return {
        "epochs": max(1, math.ceil(args.num_train_epochs)),
        "batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "accumulation": args.gradient_accumulation_steps,
        "group_by_length": args.train_sampling_strategy == "group_by_length",
        "optimizer": "adamw" if "adamw" in _word(args.optim) else "adam",
        "learning_rate": args.learning_rate,
        "warmup_share": float(args.warmup_steps) if args.warmup_steps < 1 else 0.0,
        "schedule": schedule,
        "weight_decay": args.weight_decay,
        "clip_norm": args.max_grad_norm or None,
        "precision": "bf16" if args.bf16 else "fp32",
        "log_every": int(every) if every >= 1 else 1,
        "select": _select(args),
    }


def _trained_by(trainer: Any) -> str:
    """The trainer, its model, and every argument that a recipe cannot say."""
    args = trainer.args
    defaults = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    unsaid = {name: getattr(args, name) for name in _UNSAID if getattr(args, name) != defaults[name]}
    if _word(args.optim) not in ("adamw_torch", "adamw_torch_fused"):
        unsaid["optim"] = _word(args.optim)
    if _word(args.lr_scheduler_type) not in _SCHEDULES:
        unsaid["lr_scheduler_type"] = _word(args.lr_scheduler_type)
    if args.num_train_epochs % 1:
        unsaid["num_train_epochs"] = args.num_train_epochs
    if args.train_sampling_strategy not in ("random", "group_by_length"):
        unsaid["train_sampling_strategy"] = args.train_sampling_strategy
    if args.warmup_steps >= 1:
        unsaid["warmup_steps"] = args.warmup_steps
    if hasattr(trainer.model, "active_peft_config"):
        peft = trainer.model.active_peft_config
        unsaid |= {"peft": _word(peft.peft_type), **{name: getattr(peft, name, None) for name in ("r", "lora_alpha")}}
    what = f"{type(trainer).__name__} of {type(unwrapped(trainer.model)).__name__}"
    return ", ".join([what, *(f"{name}={value}" for name, value in unsaid.items())])


def _word(value: Any) -> str:
    """The value of a setting that transformers has as a word or as a member of an Enum."""
    return str(getattr(value, "value", value)).lower()
