"""One architecture of flash-linear-attention: its logits by cu_seqlens, and its loss by each criterion and labels."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from packproof.models.board.board import BoardEntry, Built, Outcome, judge_convention, one_line
from packproof.models.board.fla.tiny import tiny_fla_model
from packproof.models.board.tiny import Architecture
from packproof.models.laws.losses import EVERY, FIRST_IGNORED, SHIFTED

CONVENTIONS_ASKED = ("cu_seqlens",)
LAYOUTS = ((5, 9, 7), (9, 1, 66, 3))  # inside a chunk of 64 and across it
FORMS = (EVERY, FIRST_IGNORED, SHIFTED)
# The criterion of a loss, by the two switches of a config.
CRITERIA: Mapping[str, Mapping[str, bool]] = {
    "plain": {"fuse_cross_entropy": False, "fuse_linear_cross_entropy": False},
    "fused": {"fuse_cross_entropy": True, "fuse_linear_cross_entropy": False},
    "fused linear": {"fuse_cross_entropy": False, "fuse_linear_cross_entropy": True},
}


def labels_name(form: str, criterion: str) -> str:
    """The labels of an outcome, as "every, fused linear"."""
    return f"{form}, {criterion}"


def judge_fla_model(architecture: Architecture, seed: int, device: str) -> Iterator[BoardEntry]:
    """The entries of a model of flash-linear-attention, in training: chunked kernels run whatever the length."""
    names = (architecture.name, architecture.model, architecture.also)
    torch.manual_seed(seed)
    try:
        model = tiny_fla_model(architecture, device)
    except Exception as error:
        yield Built(*names, reason=one_line(error))
        return
    yield Built(*names, layer_classes(model), "", sum(p.numel() for p in model.parameters()))
    yield from judge_built_model(architecture.name, model, seed, device)


def judge_built_model(name: str, model: nn.Module, seed: int, device: str) -> Iterator[Outcome]:
    """The outcome of its logits; and unless they leak, of its loss by each criterion and form of labels."""
    judge = partial(
        judge_convention,
        name,
        convention=CONVENTIONS_ASKED[0],
        seed=seed,
        with_flash=False,
        layouts=LAYOUTS,
        device=device,
        modes=("train",),
        shrinks=False,
    )
    logits = judge(model)
    if logits.word == "refuses" and (of_16_bits := judge(model.to(torch.bfloat16))).word != "refuses":
        text = "; ".join(filter(None, ("in bf16, which its kernels need", of_16_bits.text)))
        logits = replace(of_16_bits, text=text)
    yield logits
    if logits.word not in ("isolates", "differs"):  # a loss tells of labels where no logits cross
        return
    for criterion in criteria_of(model.config):
        select_criterion(model, criterion)
        for form in forms_of(model):
            yield replace(judge(model, labels=form), labels=labels_name(form, criterion))


def criteria_of(config: Any) -> list[str]:
    """The criteria with switches that this config has."""
    return [name for name, switches in CRITERIA.items() if all(hasattr(config, f) for f, on in switches.items() if on)]


def select_criterion(model: nn.Module, criterion: str) -> None:
    config: Any = model.config
    for field, is_on in CRITERIA[criterion].items():
        if hasattr(config, field):
            setattr(config, field, is_on)


def forms_of(model: nn.Module) -> list[str]:
    """The forms of labels that its forward takes by name."""
    names = inspect.signature(model.forward).parameters
    return [form for form in FORMS if form != SHIFTED or "shift_labels" in names]


def layer_classes(model: nn.Module) -> str:
    """The classes of the parts that mix tokens, as "Mamba, Attention"."""
    parts = [getattr(m, n, None) for m in model.modules() for n in ("attn", "mixer", "ska_attn")]
    return ", ".join(dict.fromkeys(type(part).__name__ for part in parts if isinstance(part, nn.Module)))
