"""What several commands share: the message for a wrong command line, the option `--seed` and the default device.

The message names the option, the value, the expected kind, and the command for help.
"""

import re
from collections.abc import Sequence
from typing import Any

import typer

from packproof.base.errors import UsageError
from packproof.base.names import SEED, did_you_mean, parse_seed

_MOST_CHARACTERS = 80  # characters of a value


def usage_message(error: Any, arguments: Sequence[str]) -> str:
    """One line for an error raised by typer."""
    message = str(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    if unknown := re.fullmatch(r"No such command '(.*)'", message):
        commands = context.command.list_commands(context)
        message += f"; {did_you_mean(unknown[1], commands)}there are: {', '.join(commands)}"
    if unknown := re.match(r"No such option:? '?(--[\w-]+)", message):  # quoted by newer click
        message = _owners_of_option(unknown[1], context) or message
    option = _option_names(error)
    if option and (expected := _expected_value(message)):
        message = f"Invalid value for '{option[-1]}': {_value(option, arguments)!r}; expected {expected}"
    return f"{message}; see `{context.command_path} --help`"


def _owners_of_option(option: str, context: Any) -> str:
    """A message that names the commands of the same group with this option; "" if there are none."""
    group = context.parent
    if group is None or group.parent is None:  # commands at the top have little in common
        return ""
    owners = [
        f"`{group.command_path} {name}`"
        for name, command in group.command.commands.items()
        if any(option in parameter.opts for parameter in command.params)
    ]
    return f"No such option: {option}; it is an option of {' and '.join(owners)}" if owners else ""


def _expected_value(message: str) -> str:
    """The expected kind of value, from the message of newer or older versions of typer; "" for another message."""
    if newer := re.search(r": Input should be (?:an? )?(?:valid )?([^,]*)", message):
        return {"integer": "a whole number", "number": "a number"}.get(newer[1], f"a number {newer[1]}")
    if kind := re.search(r"is not a valid (int|float)", message):
        return {"int": "a whole number", "float": "a number"}[kind[1]]
    if minimum := re.search(r"is not in the range (?:([\d.]+)<=x|x>=([\d.]+))", message):
        return f"a number greater than or equal to {minimum[1] or minimum[2]}"
    return ""


def _option_names(error: Any) -> list[str]:
    """The names of the option at fault, [] if no option is."""
    return [name for name in getattr(getattr(error, "param", None), "opts", ()) if name.startswith("-")]


def _value(option: Sequence[str], arguments: Sequence[str]) -> str:
    """The value of the option on the command line; of several, the last."""
    for index in reversed(range(len(arguments))):
        name, equals, value = arguments[index].partition("=")
        if name in option:
            return value if equals else arguments[index + 1]
    return ""


def seed_option(help: str) -> Any:  # noqa: A002  (typer's name)
    """The option `--seed`, for an Annotated[int, ...]: all commands accept the same seeds, with the same error."""
    return typer.Option(help=help, parser=_seed, metavar="INTEGER")


def _seed(text: str) -> int:
    try:
        return parse_seed(str(text))  # the default comes as a number
    except UsageError:
        raise typer.BadParameter(f"{text[:_MOST_CHARACTERS]!r}; expected {SEED}") from None


def default_device() -> str:
    """The device of a command without `--device`. Imports torch."""
    import torch  # noqa: PLC0415

    return "cuda" if torch.cuda.is_available() else "cpu"
