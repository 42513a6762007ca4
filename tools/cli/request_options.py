"""The options of a request on the command line, made from its fields."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from packproof.base.names import SEED_NUMBER, SWITCH, RequestOption
from packproof.cli.usage import seed_option
from packproof.harness.check import OPTIONS, CheckRequest, checked, value_from_text

COMMAND_OPTIONS = tuple(name for name, option in OPTIONS.items() if option.flags)


def request_options(
    *names: str, helps: Mapping[str, str] = {}, before: Mapping[str, str] = {}
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A decorator for commands: the options of a request come before the command's own, and are its `**options`.

    names: of the fields.
    helps: other texts for these fields.
    before: own options that `--help` shows among those of the request, by the option that follows.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        parameters = {name: _parameter(name, OPTIONS[name], helps.get(name, OPTIONS[name].help)) for name in names}
        for parameter in signature(command).parameters.values():
            if parameter.kind is Parameter.KEYWORD_ONLY:
                parameters[parameter.name] = parameter
        order = [*parameters]
        for following, name in before.items():
            order.remove(name)
            order.insert(order.index(following), name)

        @wraps(command)
        def with_options(**arguments: Any) -> int:
            return command(**arguments)

        with_options.__signature__ = Signature([parameters[name] for name in order])  # type: ignore[attr-defined]  # typer reads it
        return with_options

    return decorate


def request_from(options: Mapping[str, Any]) -> CheckRequest:
    """The request of these values on the command line. Raises UsageError, without importing torch."""
    texts = {name: text for name, text in options.items() if text is not None}
    values = {name: value_from_text(name, text, OPTIONS[name].flags[0]) for name, text in texts.items()}
    return checked({name: value for name, value in values.items() if value is not None})


def _parameter(name: str, option: RequestOption, help: str) -> Parameter:  # noqa: A002  (typer's name)
    """The parameter that typer reads for an option of the request."""
    kind, default = option.kind, option.default
    text_type: Any = list[str] if kind.text_type is list else kind.text_type
    if not option.flags[0].startswith("-"):
        form = typer.Argument(help=help)
    elif kind is SEED_NUMBER:
        form = seed_option(help)
    else:
        form = typer.Option(*option.flags, help=help, **option.form)
    default = None if default in (MISSING, ()) else default
    value_type = text_type if kind is SWITCH else text_type | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[value_type, form])
