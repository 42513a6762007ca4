"""Completion of values in a shell: the names that an option or argument takes, by its name in every command."""

import inspect
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout

import typer
from typer.models import ArgumentInfo, OptionInfo

from packproof.adapters.peers import PEERS
from packproof.base.law_names import LAWS
from packproof.base.names import ATTENTION, COMPILE, CONVENTIONS, DEVICES, LABELS, MODES, SHORT_DTYPES, TOOLS
from packproof.base.signatures import SIGNATURES
from packproof.harness.check import PROFILES

_DTYPES = tuple(SHORT_DTYPES.values())
_VALUES: Mapping[str, Sequence[str]] = {
    "target": tuple(PEERS),
    "targets": tuple(PEERS),
    "names": tuple(PEERS),
    "against": ("reference", *PEERS),
    "op": tuple(SIGNATURES),
    "device": DEVICES,
    "dtype": _DTYPES,
    "dtypes": _DTYPES,
    "properties": (*LAWS, COMPILE),
    "profile": tuple(PROFILES),
    "sanitizer": TOOLS,
    "mode": MODES,
    "labels": LABELS,
    "attention": ATTENTION,
    "convention": CONVENTIONS,
}
_BREAKS = (":", "::", "=")  # of words, in bash


def complete_values(app: typer.Typer) -> None:
    """Give each command of an app, and of its groups, completion for the parameters with names above."""
    callbacks = [command.callback for command in app.registered_commands]
    callbacks += [app.registered_callback.callback] if app.registered_callback else []
    for callback in filter(None, callbacks):
        for name, parameter in inspect.signature(callback).parameters.items():
            for form in getattr(parameter.annotation, "__metadata__", ()):
                if isinstance(form, OptionInfo | ArgumentInfo) and name in _VALUES:
                    form.autocompletion = _completer(_VALUES[name])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            complete_values(group.typer_instance)


def _completer(values: Sequence[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        """The values that begin like the last of the names, which commas separate. Without any, a shell shows files."""
        head, comma, start = incomplete.rpartition(",")
        return [f"{head}{comma}{value}" for value in values if value.startswith(start)]

    return complete


@contextmanager
def joined_words() -> Iterator[None]:
    """Complete words that bash has broken at colons and equal signs: of "fla:ro" it replaces what follows the colon."""
    words, position = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    joined = _join(words)
    if len(joined) == len(words) or not position:
        yield
        return
    before_cursor = _join(words[: int(position) + 1])
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(before_cursor) - 1)}
    kept_by_shell = before_cursor[-1].removesuffix(words[int(position)].strip(":="))
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            yield
    finally:
        print("\n".join(line.removeprefix(kept_by_shell) for line in output.getvalue().splitlines()))


def _join(words: Sequence[str]) -> list[str]:
    joined: list[str] = []
    for word in words:
        if joined and (word in _BREAKS or joined[-1].endswith(_BREAKS)):
            joined[-1] += word
        else:
            joined.append(word)
    return joined
