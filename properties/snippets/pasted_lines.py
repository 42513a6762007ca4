"""A kernel's declaration as lines of Python, for its author to paste."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from packproof.base.hub.repositories import is_hub

PLACEHOLDER = "..."
"""Stands for a value known to the author alone."""


@dataclass(frozen=True)
class PastedLines:
    """The names of a kernel and its op in lines to paste."""

    target: str
    """"path/file.py:function", "package.module:function", or another text for a function that has no such name."""
    op: str = ""
    """The name of an op, "file.py:NAME" or "module:NAME" of the user's own, or PLACEHOLDER; "" if the kernel declares
    it.
    """
    declared: bool = False
    """Whether its author has declared it already."""

    @property
    def insertion_point(self) -> str:
        """Where the lines go."""
        return "in a file of your own" if self._is_module else "below it"

    def adapter(self, arguments: Mapping[str, str], functions: Iterable[str] = ()) -> tuple[str, ...]:
        """The lines of an adapter for it.

        arguments: of `adapt`, as source text.
        functions: names of `packproof.adapters` in these arguments.
        """
        imported = ", ".join(sorted({"adapt", *functions}, key=str.lower))
        kernel = repr(self.target) if self._is_module else self._function
        call = self._call("adapt", {"": kernel, **self._op_argument, **arguments})
        return (f"from packproof.adapters import {imported}", *self._op_import, f"{self._variable} = {call}")

    def declaration(self, arguments: Mapping[str, str]) -> tuple[str, ...]:
        """The lines of its declaration. arguments: of `packproof.kernel` and of `adapt`, as source text."""
        if is_hub(self.target):  # no statement imports it
            return self.adapter(arguments)
        module, _, name = self.target.rpartition(":")
        kernel_import = [f"from {module} import {name.partition('.')[0]}"] if self._is_module else []
        call = self._call("packproof.kernel", {**self._op_argument, **arguments})
        return ("import packproof", *kernel_import, *self._op_import, f"{self._variable} = {call}({self._function})")

    def functional_call(self, arguments: Sequence[str], owned: Mapping[str, str]) -> tuple[str, ...]:
        """The lines of a function that takes parameters of an nn.Module as arguments.

        arguments: of its `forward`.
        owned: the paths of its parameters by the op's names.
        """
        module, _, name = self.target.rpartition(":")
        kernel_import = [f"from {module} import {name.partition('.')[0]}"] if self._is_module else []
        parameters = dict_text({path: name for name, path in owned.items()})
        keywords = dict_text({name: name for name in arguments})
        call = f"functional_call({self._function}, {parameters}, kwargs={keywords})"
        return (
            "from torch.func import functional_call",
            *kernel_import,
            f"{self._variable}_of = lambda {', '.join((*arguments, *owned))}: {call}",
        )

    @property
    def _is_module(self) -> bool:
        """Whether another file can import the kernel from its module."""
        source, _, name = self.target.rpartition(":")
        return source not in ("", "__main__") and not source.endswith(".py") and _is_dotted_name(name)

    @property
    def _function(self) -> str:
        """The kernel where it is defined; PLACEHOLDER for a lambda, a partial or another object."""
        name = self.target.rpartition(":")[2].rpartition("<locals>.")[2]
        return name if _is_dotted_name(name) else PLACEHOLDER

    @property
    def _variable(self) -> str:
        return "kernel" if self._function == PLACEHOLDER else self._function.replace(".", "_")

    @property
    def _op_argument(self) -> dict[str, str]:
        source, _, name = self.op.rpartition(":")
        return {"op": name if source or name == PLACEHOLDER else repr(name)} if self.op else {}

    @property
    def _op_import(self) -> list[str]:
        """The import of the user's own op, unless it stands in the kernel's file."""
        source, _, name = self.op.rpartition(":")
        if not source or source == self.target.rpartition(":")[0]:
            return []
        module = PurePath(source).stem if source.endswith(".py") else source
        return [f"from {module} import {name.partition('.')[0]}"]

    def _call(self, function: str, arguments: Mapping[str, str]) -> str:
        return f"{function}({', '.join(f'{name}={text}' if name else text for name, text in arguments.items())})"


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def dict_text(values: Mapping[str, str]) -> str:
    """The source of a dict of source texts."""
    keys = {name: name if name == PLACEHOLDER else repr(name) for name in values}
    return f"{{{', '.join(f'{keys[name]}: {text}' for name, text in values.items())}}}"


def advice(pasted: PastedLines, lines: Sequence[str]) -> str:
    """Lines to paste, as one line of an error: Python takes them from there too."""
    return f"{_instruction(pasted, lines)} {'; '.join(lines)}"


def changed_declaration(pasted: PastedLines, arguments: Mapping[str, str]) -> list[str]:
    """Lines of a report: these arguments in the declaration of a kernel."""
    if pasted.declared:
        return [f"add {', '.join(f'{name}={text}' for name, text in arguments.items())} to its declaration"]
    lines = pasted.declaration(arguments)
    return [_instruction(pasted, lines), *(f"    {line}" for line in lines)]


def _instruction(pasted: PastedLines, lines: Iterable[str]) -> str:
    hint = f", with what belongs in place of {PLACEHOLDER}" if any(PLACEHOLDER in line for line in lines) else ""
    return f"paste {pasted.insertion_point}{hint}:"
