"""Every option of a check is declared once: its doors and its line in the docs are those of the field."""

from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import packproof
from packproof.base.errors import UsageError
from packproof.cli.main import app
from packproof.harness.check.request import OPTIONS, CheckRequest, checked
from packproof.harness.pytest.options import OPTIONS as PLUGIN_OPTIONS
from packproof.properties.declarations.declaration import describe_kernel
from tests.in_process import python_in

ROOT = Path(__file__).parents[3]
NOT_IN_PYTHON = {"draw_configs", "every_configuration", "sanitizer", "compiled", "questions", "replay_dir"}
NOT_IN_PYTHON |= {"least_examples"}  # of a grade
COMMAND = typer.main.get_command(app).commands["check"]  # type: ignore[attr-defined]


def python_default(parameter: Parameter) -> Any:
    return MISSING if parameter.default is Parameter.empty else parameter.default


def test_python_takes_the_options_with_their_defaults() -> None:
    parameters = signature(packproof.check).parameters
    assert {name: python_default(parameter) for name, parameter in parameters.items()} == {
        name: option.default for name, option in OPTIONS.items() if name not in NOT_IN_PYTHON
    }
    assert [p.name for p in parameters.values() if p.kind is Parameter.POSITIONAL_OR_KEYWORD] == ["target"]
    assert all(p.annotation is not Parameter.empty for p in parameters.values())


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.flags])
def test_the_command_line_has_the_option(name: str) -> None:
    [parameter] = [p for p in COMMAND.params if p.name == name]
    option = OPTIONS[name]
    assert parameter.help == option.help
    assert parameter.opts == list(option.flags)
    assert parameter.param_type_name == ("option" if option.flags[0].startswith("--") else "argument")


def test_the_options_of_pytest_are_those_of_the_request() -> None:
    for name, option in PLUGIN_OPTIONS.items():
        if name != "slow":
            assert OPTIONS[name].help.startswith(option.help)
            assert OPTIONS[name].default == option.default


@pytest.mark.parametrize("caller", ["", "check: "])
def test_every_option_refuses_a_value_of_another_type_in_the_same_words(caller: str) -> None:
    for name, option in OPTIONS.items():
        with pytest.raises(UsageError) as caught:
            checked({name: 2.5j}, caller)
        assert str(caught.value) == f"{caller}{name} is 2.5j, a complex; expected {option.kind.expected}"


def test_a_request_is_valid_and_unchanged_when_it_is_checked_again() -> None:
    request = checked(
        {"target": "m:f", "op": "ssd", "dtypes": ["bf16"], "properties": ["packing"], "domain": "d == 8; length > 0"}
    )
    assert request.dtypes == ("bfloat16",)
    assert request.domain == ("d == 8", "length > 0")
    assert (
        checked({f.name: value for f in fields(request) if (value := getattr(request, f.name)) is not None}) == request
    )


def test_dtypes_of_torch_are_names_too() -> None:
    assert checked({"dtypes": [torch.bfloat16, "torch.float32", "fp16"]}).dtypes == ("bfloat16", "float32", "float16")
    declared = packproof.kernel(op="rope", dtypes=[torch.float16])(lambda x: x)
    assert describe_kernel(declared)["declared"]["dtypes"] == ["float16"]


def test_none_stands_for_a_default_of_none_alone() -> None:
    assert checked({"target": "m:f", "device": None, "timeout": None}) == CheckRequest("m:f")
    for name in ("target", "seed", "profile", "domain"):
        with pytest.raises(UsageError, match=f"^{name} is None; expected "):
            checked({name: None})


def test_the_table_in_the_docs_is_what_its_script_writes() -> None:
    text = (ROOT / "docs/check.md").read_text()
    done = python_in(ROOT / "docs", "import options; print(options.page(options.PAGE.read_text()), end='')")
    assert done.stdout == text, "run `python docs/options.py`"
    assert all(f"`{name}`" in text for name in OPTIONS)
