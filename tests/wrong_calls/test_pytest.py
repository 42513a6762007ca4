"""Wrong calls of the pytest plugin: arguments of the marker, options, values in the ini file, tests without a check.

Most entries read a marker without running pytest, which takes a third of a second each time.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
import torch

import packproof
from packproof.harness.pytest import marker
from packproof.harness.pytest.options import OPTIONS
from tests.wrong_calls.refused import Wrong, assert_refused

pytest_plugins = ["pytester"]

INSTALLED = any(entry.name == "packproof" for entry in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "packproof.harness.pytest.plugin")


def marked(*args: Any, **kwargs: Any) -> Callable[[], object]:
    """Reads the marker of a test, as collection does."""
    mark = pytest.mark.packproof.with_args(*args, **kwargs).mark
    return lambda: marker.request(marker.marker_arguments([mark]), {"device": kwargs.get("device") or "cpu"})


def option(name: str, text: str) -> Callable[[], object]:
    return lambda: OPTIONS[name].parse(text)


TARGET = ("packproof.refs:rope",)
MARKERS = {
    "no target": Wrong(marked(), ("names no kernel", "packproof('my_module:my_kernel', op=...)")),
    "target empty": Wrong(marked(""), ("names no kernel",)),
    "target None": Wrong(marked(None), ("names no kernel",)),
    "target a number": Wrong(marked(5), ("target is 5, an int", "'module:function'")),
    "target a list": Wrong(marked(["m:f"]), ("target is ['m:f'], a list", "'module:function'")),
    "target without a module": Wrong(marked("conv"), ("target 'conv'", "package.module:function")),
    "target without a function": Wrong(marked("conv:"), ("target 'conv:'", "package.module:function")),
    "target in no file": Wrong(marked("no_file.py:conv"), ("target 'no_file.py:conv'", "no file no_file.py in /")),
    "target not in its file": Wrong(marked(f"{__file__}:cnov"), ("test_pytest.py defines no cnov",)),
    "op without its name": Wrong(marked(*TARGET, "rope"), ("2 arguments have no name", "op=...")),
    "two targets": Wrong(marked(*TARGET, target="m:f"), ("two targets", "'m:f'")),
    "argument misspelt": Wrong(
        marked(*TARGET, property=["packing"]),
        ("'property' is not an argument; did you mean 'properties'?", "arguments: target, op, device"),
    ),
    "argument cut short": Wrong(marked(*TARGET, dtype=["fp32"]), ("'dtype'", "did you mean 'dtypes'?")),
    "argument unknown": Wrong(marked(*TARGET, colour="red"), ("'colour' is not an argument\n", "arguments: target,")),
    "op a number": Wrong(marked(*TARGET, op=5), ("op is 5, an int", "packproof.Op")),
    "op misspelt": Wrong(marked(*TARGET, op="rop"), ("no op is called 'rop'", "did you mean rope?")),
    "op empty": Wrong(marked(*TARGET, op=""), ("no op is called ''", "causal_conv1d")),
    "device misspelt": Wrong(marked(*TARGET, device="cud"), ("no device is called 'cud'", "cpu, cuda")),
    "device a number": Wrong(marked(*TARGET, device=1), ("device is 1, an int",)),
    "device a torch.device": Wrong(marked(*TARGET, device=torch.device("cpu")), ("device is device(type='cpu')",)),
    "dtypes a string": Wrong(marked(*TARGET, dtypes="fp32"), ("dtypes is 'fp32', a str", "dtypes=['fp32', 'bf16']")),
    "dtypes a number": Wrong(marked(*TARGET, dtypes=32), ("dtypes is 32, an int", "expected a list")),
    "dtypes empty": Wrong(marked(*TARGET, dtypes=[]), ("dtypes is empty", "leave it out")),
    "dtypes unknown": Wrong(marked(*TARGET, dtypes=["f32"]), ("no dtype is called 'f32'", "mean fp32?")),
    "dtypes of torch": Wrong(marked(*TARGET, dtypes=[torch.int8]), ("no dtype is called 'int8'", "fp32")),
    "dtypes with None": Wrong(marked(*TARGET, dtypes=[None]), ("dtypes has None", "names")),
    "properties a string": Wrong(
        marked(*TARGET, properties="packing"), ("properties is 'packing', a str", "properties=['packing']")
    ),
    "properties a number": Wrong(marked(*TARGET, properties=5), ("properties is 5, an int",)),
    "properties empty": Wrong(marked(*TARGET, properties=[]), ("properties is empty",)),
    "properties unknown": Wrong(marked(*TARGET, properties=["packin"]), ("'packin'", "did you mean packing?")),
    "properties of a number": Wrong(marked(*TARGET, properties=[5]), ("properties has 5, an int",)),
    "profile unknown": Wrong(marked(*TARGET, profile="fast"), ("no profile is called 'fast'", "quick, standard")),
    "profile a number": Wrong(marked(*TARGET, profile=3), ("profile is 3, an int",)),
    "seed a string": Wrong(marked(*TARGET, seed="1"), ("seed is '1', a str", "a whole number")),
    "seed a fraction": Wrong(marked(*TARGET, seed=0.5), ("seed is 0.5, a float",)),
    "seed negative": Wrong(marked(*TARGET, seed=-1), ("seed is -1", "from 0 to 2^32 - 1")),
    "seed too large": Wrong(marked(*TARGET, seed=2**32), ("seed is 4294967296", "from 0 to 2^32 - 1")),
    "timeout zero": Wrong(marked(*TARGET, timeout=0), ("timeout is 0", "seconds above zero")),
    "timeout NaN": Wrong(marked(*TARGET, timeout=float("nan")), ("timeout is nan", "seconds above zero")),
    "timeout a string": Wrong(marked(*TARGET, timeout="30s"), ("timeout is '30s', a str", "seconds")),
    "max_time negative": Wrong(marked(*TARGET, max_time=-1), ("max_time is -1", "seconds above zero")),
    "max_time a string": Wrong(marked(*TARGET, max_time="60s"), ("max_time is '60s', a str", "seconds")),
    "promises a dict": Wrong(marked(*TARGET, promises={"isolated": True}), ("promises is", "packproof.Promises")),
    "promises a class": Wrong(marked(*TARGET, promises=packproof.Promises), ("promises is", "packproof.Promises")),
    "domain a number": Wrong(marked(*TARGET, domain=8), ("domain is 8, an int", "domain=['d % 8 == 0']")),
    "domain of a number": Wrong(marked(*TARGET, domain=[8]), ("domain is [8]", "conditions")),
    "domain cut short": Wrong(marked(*TARGET, domain="k in"), ("domain: 'k in' cannot be read",)),
    "domain of a number alone": Wrong(marked(*TARGET, domain=["k == 8", "k % 8"]), ("write 'k % 8 == 0'",)),
    "domain with a comma": Wrong(marked(*TARGET, domain="length > 0, k == 8"), ("write 'length > 0; k == 8'",)),
    "domain with a call": Wrong(marked(*TARGET, domain=["f(k)"]), ("domain: 'f(k)'", "expected comparisons")),
    "strict a string": Wrong(marked(*TARGET, strict="yes"), ("strict is 'yes', a str", "True or False")),
    "forward_only a number": Wrong(marked(*TARGET, forward_only=1), ("forward_only is 1, an int", "True or False")),
    "sanitizer unknown": Wrong(marked(*TARGET, sanitizer="memchek"), ("'memchek'", "did you mean memcheck?")),
    "compiled a number": Wrong(marked(*TARGET, compiled=5), ("compiled is 5, an int", "the path of a file")),
    "compiled in no file": Wrong(marked(*TARGET, compiled="no.json"), ("compiled: no.json is no file",)),
    "replay_dir a number": Wrong(marked(*TARGET, replay_dir=5), ("replay_dir is 5, an int", "a folder")),
    "expected_failures a list": Wrong(
        marked(*TARGET, expected_failures=["known.toml"]),
        ("expected_failures is ['known.toml'], a list", "a TOML file"),
    ),
    "expected_failures in no file": Wrong(
        marked(*TARGET, expected_failures="no.toml"), ("expected failures: no.toml: No such file",)
    ),
    "option: expected_failures": Wrong(option("expected_failures", "no.toml"), ("no.toml: No such file",)),
    "option: profile": Wrong(option("profile", "fast"), ("no profile is called 'fast'", "quick, standard, thorough")),
    "option: device": Wrong(option("device", "gpu0"), ("no device is called 'gpu0'", "cpu, cuda")),
    "option: device empty": Wrong(option("device", ""), ("no device is called ''", "cpu, cuda")),
    "option: seed": Wrong(option("seed", "one"), ("'one' is not a seed", "from 0 to 2^32 - 1")),
    "option: seed negative": Wrong(option("seed", "-3"), ("'-3' is not a seed",)),
    "option: slow": Wrong(option("slow", "perhaps"), ("'perhaps' is neither true nor false",)),
}


@pytest.mark.parametrize("wrong", MARKERS.values(), ids=MARKERS)
def test_a_wrong_value_is_refused(wrong: Wrong) -> None:
    assert_refused(wrong)


def test_two_markers_on_one_test_are_refused() -> None:
    mark = pytest.mark.packproof.with_args(*TARGET).mark
    assert_refused(
        Wrong(lambda: marker.marker_arguments([mark, mark]), ("2 of these markers", "write a test for each"))
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--packproof-profile=fast"], "--packproof-profile: no profile is called 'fast'; there are: quick, standard,"),
        (["--packproof-seed=x"], "--packproof-seed: 'x' is not a seed; expected a whole number from 0 to 2^32 - 1"),
        (["--packproof-device"], "--packproof-device: expected one argument"),
        (
            ["--packproof-expected-failures=no.toml"],
            "--packproof-expected-failures: expected failures: no.toml: No such",
        ),
        (["-o", "packproof_profile=fast"], "ERROR: ini: packproof_profile: no profile is called 'fast'; there are:"),
        (["-o", "packproof_seed=-1"], "ERROR: ini: packproof_seed: '-1' is not a seed"),
        (["-o", "packproof_slow=perhaps"], "ERROR: ini: packproof_slow: 'perhaps' is neither true nor false"),
    ],
    ids=["profile", "seed", "no device", "expected failures", "ini profile", "ini seed", "ini slow"],
)
def test_a_wrong_option_is_a_usage_error_of_pytest(pytester: pytest.Pytester, arguments: list[str], says: str) -> None:
    """At the start: nothing is collected."""
    pytester.makepyfile("raise SystemExit('collected')")
    result = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
