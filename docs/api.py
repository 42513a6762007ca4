"""Fills docs/api.md: an entry for each public name, from its signature and docstring. `docs/conf.py` calls `fill`.

Fields of a class come from the lines `name: text` of its docstring, or from the docstring under each field.

A comment `<!-- api: packproof.refs.packing packproof.refs.packers -->` stands for the public names that these modules
define, and `<!-- api: else -->` for the rest, so that a new name is on the page once it is in an `__all__`.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

import packproof
from packproof import adapters, kernels, layers, museum, packs, parallel, properties, refs

PACKAGES = (packproof, refs, kernels, layers, packs, parallel, adapters, properties, museum)
COMMENT = re.compile(r"<!-- api: (.*?) -->")
ELSE = "else"
_FIELD = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): ")
_RESULT = re.compile(r"(Returns|Raises|UsageError) ")
_DOTTED = re.compile(r"~?(?:\w+\.)+(\w+)")


@dataclass(frozen=True)
class Entry:
    """A public name."""

    name: str
    others: tuple[str, ...]
    """The names of the same object in other packages."""
    home: str
    """The module that defines it."""
    value: Any

    def text(self) -> str:
        """Its entry in Markdown, with those of its methods."""
        if inspect.ismodule(self.value):
            return f"```{{py:module}} {self.name}\n```\n{_doc(self.value)}\n```{{py:currentmodule}} None\n```"
        if not callable(self.value):
            return _directive("data", self.name, "")
        kind = "class" if isinstance(self.value, type) else "function"
        if kind == "class" and issubclass(self.value, BaseException):
            return _directive("exception", self.name, _doc(self.value), *self._canonical)
        members = "\n\n".join(_members(self.value)) if kind == "class" else ""
        doc = _class_doc(self.value) if kind == "class" else _doc(self.value)
        body = f"{doc}\n\n{members}".strip()
        return _directive(kind, self.name + signature(self.value), body, *self._canonical)

    @property
    def _canonical(self) -> tuple[str, ...]:
        return tuple(f":canonical: {other}" for other in self.others)


def entries() -> list[Entry]:
    """One for each public object; where two packages export it, under the shorter name."""
    found: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for package in PACKAGES:
        homes = vars(package).get("_homes", {})
        for name in getattr(package, "__all__", None) or homes:
            full, value = f"{package.__name__}.{name}", getattr(package, name)
            home = full if inspect.ismodule(value) else _home(package, name) or getattr(value, "__module__", full)
            found.setdefault((home, name), []).append((full, value))
    return [
        Entry(names[0][0], tuple(name for name, _ in names[1:]), home, names[0][1])
        for (home, _), names in found.items()
    ]


def _home(package: ModuleType, name: str) -> str:
    """The module that defines a name of a package with lazy names, through the faces of rooms; "" without one."""
    home: str = vars(package).get("_homes", {}).get(name, "")
    return (home and _home(import_module(home), name)) or home


def fill(page: str) -> str:
    """The page with entries in the place of its comments. Raises ValueError for a comment that stands for nothing."""
    groups = COMMENT.findall(page)
    placed = {home for group in groups for home in group.split()}
    known = entries()

    def texts(match: re.Match[str]) -> str:
        homes = match[1].split()
        mine = [e for e in known if e.home in homes or (homes == [ELSE] and e.home not in placed)]
        if not mine:
            raise ValueError(f"docs/api.md: {match[0]} stands for no public name")
        return "\n\n".join(entry.text() for entry in mine)

    return COMMENT.sub(texts, page)


def signature(value: Callable[..., Any], *, bound: bool = False) -> str:
    """The parameters and the result, with types by their public or short names. bound: without the first parameter."""
    try:
        found = inspect.signature(value)
    except ValueError:
        return "()"
    parts, keyword_only = [], False
    for parameter in list(found.parameters.values())[bound:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(_parameter(parameter))
    result = "" if found.return_annotation in (found.empty, None) else f" -> {_type(found.return_annotation)}"
    return f"({', '.join(parts)}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" * ((parameter.kind is parameter.VAR_POSITIONAL) + 2 * (parameter.kind is parameter.VAR_KEYWORD))
    annotated = parameter.annotation is not parameter.empty
    text = f"{stars}{parameter.name}" + (f": {_type(parameter.annotation)}" if annotated else "")
    if parameter.default is parameter.empty:
        return text
    default = _default(parameter.default)
    return f"{text} = {default}" if annotated else f"{text}={default}"


def _default(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}()"  # each is one without arguments
    return "..." if re.search("[<{]", repr(value)) else repr(value)  # a factory, or functions with their addresses


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _DOTTED.sub(lambda match: _public().get(match[0], match[1]), text).replace("~", "")


@cache
def _public() -> dict[str, str]:
    """The public name of each class, by the module and name that define it."""
    return {f"{e.home}.{e.name.rpartition('.')[2]}": e.name for e in entries() if isinstance(e.value, type)}


def _members(owner: type) -> Iterator[str]:
    """The entries of the public methods and properties of a class."""
    fields = getattr(owner, "__dataclass_fields__", ())
    for name, member in vars(owner).items():
        if name.startswith("_") or name in fields or not inspect.getdoc(getattr(owner, name)):
            continue
        if isinstance(member, property | cached_property):
            yield _directive("property", name, _doc(member))
        elif isinstance(member, classmethod | staticmethod):
            kind = ":classmethod:" if isinstance(member, classmethod) else ":staticmethod:"
            yield _directive("method", name + signature(getattr(owner, name)), _doc(member), kind)
        elif inspect.isfunction(member):
            yield _directive("method", name + signature(member, bound=True), _doc(member))


def _directive(kind: str, argument: str, body: str, *options: str) -> str:
    fence = "````" if "```" in body else "```"
    fence += "`" * (fence in body)
    return "\n".join([f"{fence}{{py:{kind}}} {argument}", *options, "", body, fence])


def _doc(value: Any) -> str:
    return markdown(inspect.getdoc(value) or "")


def _class_doc(owner: type) -> str:
    """The docstring, with the fields before results, errors and examples."""
    blocks = _paragraphs(inspect.getdoc(owner) or "")
    end = next((i for i, block in enumerate(blocks) if _RESULT.match(block) or block.startswith(">>>")), len(blocks))
    fields = "\n".join(_field(name, text) for name, text in field_docs(owner).items())
    shown = [*map(_block, blocks[:end]), fields, *map(_block, blocks[end:])]
    return "\n\n".join(block for block in shown if block)


def field_docs(owner: type) -> dict[str, str]:
    """The docstrings under the public fields of a class and its bases, by field, those of the bases first."""
    docs: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.partition(".")[0] == owner.__module__.partition(".")[0]:
            docs |= _own_field_docs(base)
    return docs


def _own_field_docs(owner: type) -> dict[str, str]:
    """Python drops a string under a field, so that the source is read."""
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # made at run time
        return {}
    [node] = ast.parse(textwrap.dedent(source)).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(getattr(node, "body", []))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        if not field.target.id.startswith("_")
    }


def _field(name: str, text: str) -> str:
    body = "\n\n".join(_prose(block.splitlines()) for block in _paragraphs(text))
    return f"- {name}: {textwrap.indent(body, '  ').lstrip()}"


def markdown(docstring: str) -> str:
    """A docstring as a page shows it: `name: ...` lines as a list, examples and indented blocks as code."""
    return "\n\n".join(map(_block, _paragraphs(docstring)))


def _paragraphs(docstring: str) -> list[str]:
    return re.split(r"\n\s*\n", docstring)


def _block(block: str) -> str:
    lines = block.splitlines()
    if lines[:1] and lines[0].lstrip().startswith(">>>"):
        return "\n".join(["```python", *(line.removeprefix(" " * _indent(lines[0])) for line in lines), "```"])
    if lines and all(line.startswith("    ") for line in lines):
        return block
    shown: list[str] = []
    for line in lines:
        if shown and _RESULT.match(line):
            shown.append("")
        shown.append(f"- {line}" if _FIELD.match(line) else line.strip())
    return _prose(shown)


def _prose(lines: list[str]) -> str:
    """Lines with all that Markdown would read as markup escaped, code apart."""
    parts = re.split("(`[^`]*`)", "\n".join(lines))
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
