"""The options of the plugin, on the command line and in the ini file, and their values in a run."""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from packproof.base.errors import UsageError


@dataclass(frozen=True)
class Option:
    """An option: `--packproof-<name>`, or `packproof_<name>` in the ini file."""

    name: str
    help: str
    default: Any
    parse: Callable[[str], Any]
    """Parses a value; ValueError or UsageError for invalid text."""
    metavar: str = ""
    """The name of the value in help."""

    @property
    def flag(self) -> str:
        return f"--packproof-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        return f"packproof_{self.name}"


def _request_value(name: str) -> Callable[[str], Any]:
    """The parser of an option that the request has too. It imports the request when it is called."""

    def parse(text: str) -> Any:
        from packproof.harness.check import checked, value_from_text  # noqa: PLC0415

        return getattr(checked({name: value_from_text(name, text, name)}), name)

    return parse


def _expected_failures(text: str) -> str:
    """The absolute path of the file, valid in every folder in which the run goes on."""
    return str(_request_value("expected_failures")(os.path.abspath(text)))


def _contract(text: str) -> str:
    """The same of a contract."""
    path = os.path.abspath(text)
    _request_value("contract")(path)
    return path


def _switch(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise UsageError(f"{text!r} is neither true nor false")
    return values[text.lower()]


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("profile", "how many examples: quick, standard or thorough", "standard", _request_value("profile")),
        Option("device", "cpu or cuda  [default: cuda if available]", None, _request_value("device")),
        Option("seed", "another seed draws other examples", 0, _request_value("seed")),
        Option(
            "expected_failures",
            "TOML file of known failures, by target, property and dtype",
            None,
            _expected_failures,
            "FILE",
        ),
        Option("contract", "JSON file that fixes op, domain, gradients, dtypes, promises", None, _contract, "FILE"),
        Option("slow", "check the kernels of tests marked slow too", False, _switch),
    )
}


def add_options(parser: pytest.Parser) -> None:
    """Declare the options, for the command line and the ini file."""
    group = parser.getgroup("packproof")
    for option in OPTIONS.values():
        if option.default is False:
            group.addoption(option.flag, action="store_true", default=None, help=option.help)
        else:
            metavar = option.metavar or option.name.upper()
            group.addoption(option.flag, type=_argparse_type(option.parse), metavar=metavar, help=option.help)
        parser.addini(option.key, f"default of {option.flag}: {option.help}", default="")


def _argparse_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The parser for argparse, whose errors name the option."""

    def argument(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


def require_ini(config: pytest.Config) -> None:
    """pytest.UsageError for a value in the ini file that the option does not take."""
    for option in OPTIONS.values():
        ini_value(config, option)


def command_line_value(config: pytest.Config, option: Option) -> Any:
    """The value of an option on the command line; None if absent."""
    return config.getoption(option.key)


def ini_value(config: pytest.Config, option: Option) -> Any:
    """The value of an option in the ini file; None if absent."""
    text = str(config.getini(option.key)).strip()
    try:
        return option.parse(text) if text else None
    except UsageError as error:
        problem = str(error)
    raise pytest.UsageError(f"{config.inipath.name if config.inipath else 'ini'}: {option.key}: {problem}")


def option_value(config: pytest.Config, name: str, marker: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The value of an option and its source, in words.

    The command line comes first, then the marker, the ini file and the default.
    """
    option = OPTIONS[name]
    candidates = (
        (command_line_value(config, option), option.flag),
        ((marker or {}).get(name), f"@pytest.mark.packproof: {name}"),
        (ini_value(config, option), option.key),
    )
    return next((candidate for candidate in candidates if candidate[0] is not None), (option.default, name))
