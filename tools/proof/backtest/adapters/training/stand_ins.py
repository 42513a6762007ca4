"""Stand-ins for what a framework's file imports and a question never calls, and a tokenizer without a vocabulary."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PAD = 0
"""The token of padding. No document has it."""
IGNORED = -100


class _AnyName(type):
    """A class with every attribute, so that it can be imported, subclassed, called and named in an annotation."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {})


def stand_in(*names: str) -> None:
    """Let modules be imported that are not installed, or not for these versions; they have every name, and do nothing.

    Parts of an installed package are replaced where it has not imported them itself.
    """
    for name in names:
        package, *parts = name.split(".")
        if package not in sys.modules and (find_spec(package) is None or (parts and not _can_be_imported(package))):
            sys.modules[package] = _empty_module(package)
        for part in parts:
            parent, package = package, f"{package}.{part}"
            module = sys.modules.setdefault(package, _empty_module(package))
            setattr(sys.modules[parent], part, module)


def _can_be_imported(package: str) -> bool:
    try:
        import_module(package)
    except ImportError:  # an installed one may be too old for the others
        return False
    return True


def _empty_module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    module.__getattr__ = lambda attribute: getattr(_AnyName("Any", (), {}), attribute)  # type: ignore[method-assign]
    return module


def tokenizer() -> Any:
    """A tokenizer of transformers that can pad, and has no words."""
    from tokenizers import Tokenizer  # type: ignore[import-not-found]  # noqa: PLC0415
    from tokenizers.models import WordLevel  # type: ignore[import-not-found]  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = Tokenizer(WordLevel({"<pad>": PAD, "<unk>": 1}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", padding_side="right")


def labels_of(document: dict[str, list[int]]) -> list[int]:
    """The labels of a document: its own, or its tokens."""
    return list(document.get("labels", document["input_ids"]))


def labels_within(document: dict[str, list[int]]) -> list[int]:
    """The labels of a document whose first token, as of a prompt, is predicted by none."""
    return [IGNORED, *labels_of(document)[1:]][: len(document["input_ids"])]


def by_column(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows of a table as its columns."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
