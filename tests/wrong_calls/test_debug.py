"""Wrong calls of gradcheck, dot_product_test, diff, magnitude, replay and `packproof diff`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import Op, PackLayout, diff, dot_product_test, gradcheck, magnitude, refs, replay
from packproof.cli import main
from packproof.properties.cases.case import Case
from tests.wrong_calls.refused import Wrong, assert_refused

CU = torch.tensor([0, 3, 3, 8])
NAN = float("nan")
W = torch.ones(4, 2).bfloat16()
CONV: Any = refs.causal_conv1d


def few(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Any:
    """A kernel without optional inputs and options."""
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def x(*, rows: int = 8, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-1, 1, rows * 4, dtype=dtype).view(rows, 4)


def weight(*, channels: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(channels, 3, dtype=dtype)


def check(kernel: Any = CONV, *, leave: str = "", **changed: Any) -> Callable[[], object]:
    """A call of gradcheck with some of its tensors or arguments changed."""
    arguments: dict[str, Any] = {"cu_seqlens": CU, "op": "causal_conv1d"}
    inputs = {"x": x(), "weight": weight()}
    for name, value in changed.items():
        (arguments if name in GRADCHECK else inputs)[name] = value
    inputs.pop(leave, None)
    given = arguments.pop("inputs", inputs)
    return lambda: gradcheck(kernel, given, **arguments)


GRADCHECK = ("inputs", "cu_seqlens", "op", "options", "cotangents", "promises", "seed")


def attend(**sizes: Any) -> Callable[[], object]:
    heads = {"q": 2, "k": 1, "v": 1, **sizes}
    given = {name: torch.ones(4, h, 4) for name, h in heads.items()}
    return lambda: gradcheck(refs.attention, given, cu_seqlens=torch.tensor([0, 4]), op="attention")


def rope(**tables: Tensor) -> Callable[[], object]:
    given = {"x": torch.ones(4, 1, 4), "cos": torch.ones(4, 2), "sin": torch.ones(4, 2), **tables}
    return lambda: gradcheck(refs.rope, given, cu_seqlens=torch.tensor([0, 4]), op="rope")


OWN = Op("own", lambda x, *, cu_seqlens: x[:, :3], {"x": "t 2"}, {"y": "t 2"}, options={"way": ("up", "down")})
BROKEN = Op("broken", lambda x, *, cu_seqlens: x.no_such_method(), {"x": "t d"}, {"y": "t d"})


def own(op: Any, size: int = 2, **arguments: Any) -> Callable[[], object]:
    cu = torch.tensor([0, 4])
    return lambda: gradcheck(lambda x, *, cu_seqlens: x, {"x": torch.ones(4, size)}, cu_seqlens=cu, op=op, **arguments)


IN_GRADCHECK = {
    "kernel None": Wrong(check(None), ("kernel is None", "function")),
    "kernel a name": Wrong(check("m:f"), ("kernel is 'm:f'", "function")),
    "kernel of another op": Wrong(check(refs.rope), ("takes (x, cos", "weight")),
    "no inputs": Wrong(check(inputs={}), ("'x' is missing", "weight (d w)")),
    "inputs a list": Wrong(check(inputs=[x(), weight()]), ("inputs is a list", "dict", "weight")),
    "inputs None": Wrong(check(inputs=None), ("inputs is None", "dict")),
    "input unknown": Wrong(check(weights=weight()), ("'weights'", "did you mean 'weight'")),
    "input in other case": Wrong(check(X=x()), ("'X'", "did you mean 'x'")),
    "weight missing": Wrong(check(leave="weight"), ("'weight' is missing", "x (t d)")),
    "x missing": Wrong(check(leave="x"), ("'x' is missing",)),
    "weight of other channels": Wrong(check(weight=weight(channels=3)), ("weight has 3 channels", "x has 4")),
    "weight of one axis": Wrong(check(weight=torch.ones(4)), ("weight has 1 axis", "(d w)")),
    "x of three axes": Wrong(check(x=torch.ones(1, 8, 4)), ("x has 3 axes", "(t d)")),
    "x a list": Wrong(check(x=[1.0]), ("'x' is a list", "tensor")),
    "x None": Wrong(check(x=None), ("'x' is None", "tensor")),
    "x of integers": Wrong(check(x=x().long()), ("'x' is int64", "floating-point")),
    "x complex": Wrong(check(x=x() + 0j), ("'x' is complex64", "floating-point")),
    "x sparse": Wrong(check(x=x().to_sparse()), ("'x' is sparse", "dense")),
    "x on meta": Wrong(check(x=x().to("meta")), ("'x' is on the meta device",)),
    "x with NaN": Wrong(check(x=x() * NAN), ("x is nan at [0, 0]", "finite")),
    "weight infinite": Wrong(check(weight=weight() / 0), ("weight is inf at [0, 0]", "finite")),
    "weight of fp64": Wrong(check(weight=weight(dtype=torch.float64)), ("weight is float64", "float32")),
    "bias of bf16": Wrong(check(bias=torch.ones(4).bfloat16()), ("bias is bfloat16", "float32")),
    "bias of other channels": Wrong(check(bias=torch.ones(5)), ("bias has 5 channels", "x has 4")),
    "bias None": Wrong(check(bias=None), ("'bias' is None", "tensor")),
    "bias that it does not take": Wrong(check(few, bias=torch.ones(4)), ("'bias'", "does not take", "few")),
    "states of other sequences": Wrong(check(initial_states=torch.ones(2, 4, 2)), ("initial_states has 2", "has 3")),
    "states of other taps": Wrong(check(initial_states=torch.ones(3, 4, 3)), ("axis w-1", "2 was expected")),
    "offsets a list": Wrong(check(cu_seqlens=[0, 8]), ("cu_seqlens is a list", "int32 or int64")),
    "offsets None": Wrong(check(cu_seqlens=None), ("cu_seqlens is None", "int32 or int64")),
    "offsets of floats": Wrong(check(cu_seqlens=CU.float()), ("cu_seqlens is float32", "int32 or int64")),
    "offsets of two axes": Wrong(check(cu_seqlens=CU[None]), ("cu_seqlens has shape (1, 4)", "(s + 1,)")),
    "offsets empty": Wrong(check(cu_seqlens=CU[:0]), ("cu_seqlens has shape (0,)", "(s + 1,)")),
    "offsets from 2": Wrong(check(cu_seqlens=torch.tensor([2, 8])), ("cu_seqlens starts at 2", "0 was expected")),
    "offsets that fall": Wrong(check(cu_seqlens=torch.tensor([0, 5, 3])), ("decreases from 5 to 3",)),
    "offsets past the end": Wrong(check(cu_seqlens=torch.tensor([0, 9])), ("ends at 9", "8 tokens")),
    "op None": Wrong(check(op=None), ("which op", "causal_conv1d")),
    "op unknown": Wrong(check(op="causal_conv"), ("'causal_conv'", "did you mean causal_conv1d")),
    "op a number": Wrong(check(op=5), ("op is 5", "packproof.Op")),
    "op a function": Wrong(check(op=refs.ssd), ("op is a function", "packproof.Op")),
    "options a list": Wrong(check(options=["activation"]), ("options is a list", "dict")),
    "option unknown": Wrong(check(options={"activate": "silu"}), ("'activate'", "did you mean 'activation'")),
    "option of no name": Wrong(check(options={1: "silu"}), ("options has 1", "activation")),
    "option an input": Wrong(check(options={"bias": torch.ones(4)}), ("'bias'", "is an input")),
    "option of another value": Wrong(check(options={"activation": "relu"}), ("activation is 'relu'", "'silu'")),
    "flag a number": Wrong(check(options={"return_final_states": 1}), ("return_final_states is 1", "True")),
    "option that it does not take": Wrong(check(few, options={"activation": "silu"}), ("'activation'", "not take")),
    "cotangents a tensor": Wrong(check(cotangents=x()), ("cotangents is a Tensor", "dict")),
    "cotangent in other case": Wrong(check(cotangents={"Y": x()}), ("'Y'", "did you mean 'y'")),
    "cotangent of an input": Wrong(check(cotangents={"x": x()}), ("'x'", "causal_conv1d has y")),
    "cotangent not returned": Wrong(
        check(cotangents={"final_states": torch.ones(3, 4, 2)}), ("final_states", "return_final_states=True")
    ),
    "cotangent of another shape": Wrong(check(cotangents={"y": x()[:, :3]}), ("'y'", "(8, 3)", "(8, 4)")),
    "cotangent of fp64": Wrong(check(cotangents={"y": x().double()}), ("'y' is float64", "float32 (8, 4)")),
    "cotangent None": Wrong(check(cotangents={"y": None}), ("'y' is None", "tensor")),
    "cotangent with NaN": Wrong(check(cotangents={"y": x() * NAN}), ("cotangent y is nan", "finite")),
    "promises a dict": Wrong(check(promises={"grid": "token"}), ("promises is a dict", "packproof.Promises")),
    "seed a text": Wrong(check(seed="a"), ("seed is 'a'", "whole number")),
    "seed below zero": Wrong(check(seed=-1), ("seed is -1", "from 0 to 2^32 - 1")),
    "seed a truth": Wrong(check(seed=True), ("seed is True", "whole number")),
    "heads that do not share": Wrong(attend(q=3, k=2, v=2), ("3 query heads", "2 key heads")),
    "values of other heads": Wrong(attend(v=2), ("v has 2 key heads", "has 1")),
    "tables too short": Wrong(rope(cos=torch.ones(2, 2), sin=torch.ones(2, 2)), ("cos has 2 positions", "4 tokens")),
    "tables too wide": Wrong(rope(cos=torch.ones(4, 3), sin=torch.ones(4, 3)), ("r = 3", "2 * r <= k")),
    "one's own axis": Wrong(own(OWN, 3), ("x has shape (4, 3)", "(t 2)")),
    "one's own option": Wrong(own(OWN, options={"way": "left"}), ("way is 'left'", "'up' or 'down'")),
    "one's own reference": Wrong(own(BROKEN), ("reference of broken", "AttributeError")),
}


def dot(function: Any = torch.sin, *inputs: Any, **arguments: Any) -> Callable[[], object]:
    return lambda: dot_product_test(function, *(inputs or (x(),)), **arguments)


IN_DOT_PRODUCT_TEST = {
    "function None": Wrong(dot(None), ("function is None", "a function was expected")),
    "function a number": Wrong(dot(5), ("function is 5", "a function was expected")),
    "no tensors": Wrong(lambda: dot_product_test(lambda: None), ("0 inputs", "tensors with elements")),
    "too few": Wrong(dot(lambda a, b: a), ("takes (a, b)", "1 tensor came")),
    "too many": Wrong(dot(lambda a: a, x(), x()), ("takes (a)", "2 tensors came")),
    "a list": Wrong(dot(lambda a, b: a, x(), [1.0]), ("b is a list", "dense tensor")),
    "a number": Wrong(dot(lambda a, b: a * b, x(), 2.0), ("b is 2.0", "dense tensor")),
    "integers": Wrong(dot(lambda a: a, torch.arange(3)), ("a is int64", "float64 or float32")),
    "sparse": Wrong(dot(lambda a: a, x().to_sparse()), ("a is sparse", "dense")),
    "meta": Wrong(dot(lambda a: a, x().to("meta")), ("a is on the meta device", "finite")),
    "NaN": Wrong(dot(lambda a: a, x() * NAN), ("a is nan at [0, 0]", "finite")),
    "empty": Wrong(dot(torch.sin, torch.zeros(0)), ("1 input", "with elements")),
    "seed a text": Wrong(dot(seed="a"), ("seed is 'a'", "whole number")),
    "seed a float": Wrong(dot(seed=1.5), ("seed is 1.5", "whole number")),
    "returns a number": Wrong(dot(lambda a: 5.0), ("returned 5.0", "tensors of")),
    "returns None": Wrong(dot(lambda a: None), ("returned None", "tensors of")),
    "returns a list": Wrong(dot(lambda a: [a]), ("returned a list", "tensors of")),
    "returns integers": Wrong(dot(lambda a: a.argmax(0)), ("returned int64", "tensors of")),
    "returns NaN": Wrong(dot(lambda a: a.log()), ("returned nan", "finite")),
    "returns something else each time": Wrong(dot(torch.nn.functional.dropout), ("other values", "seed")),
    "raises": Wrong(dot(lambda a: a[99]), ("IndexError",)),
    "depends on no input": Wrong(dot(lambda a: torch.ones(3)), ("no output changes",)),
    "takes bf16 alone": Wrong(dot(lambda a: a * torch.ones(4).bfloat16() @ W, x().bfloat16()), ("inconclusive",)),
}


def differ(kernel: Any = few, *given: Any, **arguments: Any) -> Callable[[], object]:
    arguments = {"op": "causal_conv1d", **arguments}
    return lambda: diff(kernel, *(given or ([2],)), **arguments)


def case(**changed: Any) -> Case:
    return Case(**{"lengths": (2,), "dtype": "float32", "sizes": (("d", 3), ("w", 2)), **changed})


TENSORS = {"x": x(), "weight": weight()}
IN_DIFF = {
    "kernel None": Wrong(differ(None), ("kernel is None", "function")),
    "kernel a number": Wrong(differ(5), ("kernel is 5", "function")),
    "kernel no target": Wrong(differ("conv"), ("'conv'", "package.module:function")),
    "kernel not found": Wrong(differ("no_such_module:f"), ("no_such_module",)),
    "no case": Wrong(differ(few, None), ("case is missing", "[3, 0, 5]")),
    "case a number": Wrong(differ(few, 5), ("case is 5", "PackLayout")),
    "case of texts": Wrong(differ(few, [3, "a"]), ("case is [3, 'a']", "lengths")),
    "case of fractions": Wrong(differ(few, [2.5]), ("case is [2.5]", "lengths")),
    "case below zero": Wrong(differ(few, [-1]), ("case is [-1]", "lengths")),
    "case a dict": Wrong(differ(few, {"a": 1}), ("case is {'a': 1}", "lengths")),
    "case a tensor": Wrong(differ(few, CU), ("case is a tensor (4,)", "PackLayout.from_cu_seqlens")),
    "case with gaps": Wrong(differ(few, PackLayout((2, 2), gaps=(1, 0))), ("gaps (1, 0)", "sequences in a row")),
    "no such file": Wrong(differ(few, "no/such/file.json"), ("no/such/file.json", "No such file")),
    "reference a number": Wrong(differ(few, 5, [2]), ("reference is 5", "function")),
    "reference a list": Wrong(differ(few, [2], [2]), ("reference is a list", "function")),
    "reference of another op": Wrong(differ(few, refs.rope, [2]), ("takes (x, cos", "weight")),
    "op None": Wrong(differ(op=None), ("which op", "causal_conv1d")),
    "op unknown": Wrong(differ(op="conv"), ("'conv'", "causal_conv1d")),
    "op a number": Wrong(differ(op=5), ("op is 5", "packproof.Op")),
    "op of other tensors": Wrong(differ(op="rope"), ("takes (x, weight", "cos, sin")),
    "device unknown": Wrong(differ(device="gpu"), ("'gpu'", "cpu, cuda")),
    "device a number": Wrong(differ(device=0), ("device is 0", "'cpu' or 'cuda'")),
    "dtype unknown": Wrong(differ(dtype="fp23"), ("'fp23'", "fp32")),
    "dtype of integers": Wrong(differ(dtype=torch.int32), ("'int32'", "fp32")),
    "dtype a number": Wrong(differ(dtype=16), ("dtype is 16", "bf16")),
    "sizes a list": Wrong(differ(sizes=[3]), ("sizes is a list", "d, w")),
    "size unknown": Wrong(differ(sizes={"q": 3}), ("'q'", "d, w")),
    "size zero": Wrong(differ(sizes={"d": 0}), ("d = 0", "above 0")),
    "size a text": Wrong(differ(sizes={"d": "3"}), ("d = '3'", "integer")),
    "sizes that the op excludes": Wrong(
        differ(refs.attention, [2], op="attention", sizes={"hq": 3, "hk": 2}), ("hk = 2, hq = 3", "hq % hk == 0")
    ),
    "too large": Wrong(differ(few, [1 << 30]), ("elements", "at most")),
    "present a text": Wrong(differ(CONV, present="bias"), ("present is 'bias'", "bias, initial_states")),
    "present unknown": Wrong(differ(CONV, present=["bias_"]), ("'bias_'", "did you mean 'bias'")),
    "present that it does not take": Wrong(differ(present=["bias"]), ("'bias'", "does not take")),
    "options a list": Wrong(differ(CONV, options=["activation"]), ("options is a list", "dict")),
    "option unknown": Wrong(differ(CONV, options={"gelu": True}), ("'gelu'", "activation")),
    "option of another value": Wrong(differ(CONV, options={"activation": "relu"}), ("'relu'", "'silu'")),
    "option that it does not take": Wrong(differ(options={"activation": "silu"}), ("'activation'", "not take")),
    "option of another type": Wrong(
        differ(refs.attention, [2], op="attention", options={"window_size": 5}), ("window_size",)
    ),
    "seed a text": Wrong(differ(seed="a"), ("seed is 'a'", "whole number")),
    "seed below zero": Wrong(differ(seed=-1), ("seed is -1", "from 0 to 2^32 - 1")),
    "Case with lengths below zero": Wrong(differ(few, case(lengths=(-2,))), ("lengths is [-2]", "counts")),
    "Case with a short dtype": Wrong(differ(few, case(dtype="fp32")), ("'fp32'", "float32")),
    "Case without a size": Wrong(differ(few, case(sizes=(("d", 3),))), ("no size 'w'",)),
    "Case of another op": Wrong(differ(few, case(present=("cos",))), ("no input 'cos'",)),
    "Case with another option": Wrong(differ(CONV, case(options=(("activation", "relu"),))), ("activation", "silu")),
    "Case of objects": Wrong(differ(few, case(sizes=(("d", object()),))), ("Case cannot be read",)),
    "Case and a dtype": Wrong(differ(few, case(), dtype="bf16"), ("dtype was given", "case.replace(dtype=...)")),
    "Case and a seed": Wrong(differ(few, case(), seed=1), ("seed was given", "case.replace(seed=...)")),
    "Case and tensors": Wrong(differ(few, case(), inputs=TENSORS), ("inputs was given", "lengths")),
    "tensors a list": Wrong(differ(few, [8], inputs=[x()]), ("inputs is a list", "dict")),
    "tensors and sizes": Wrong(differ(few, [8], inputs=TENSORS, sizes={"d": 4}), ("sizes was given", "inputs")),
    "tensors and a dtype": Wrong(differ(few, [8], inputs=TENSORS, dtype="bf16"), ("dtype was given", "inputs")),
    "tensors too short": Wrong(differ(few, [9], inputs=TENSORS), ("ends at 9", "8 tokens")),
    "tensors of other slack": Wrong(differ(few, PackLayout((6,), 1), inputs=TENSORS), ("1 row of slack", "have 2")),
    "tensors that are missing": Wrong(differ(few, [8], inputs={"x": x()}), ("'weight' is missing",)),
    "cotangents without tensors": Wrong(differ(cotangents={"y": x()}), ("cotangents", "without inputs")),
    "cotangent in other case": Wrong(
        differ(few, [8], inputs=TENSORS, cotangents={"Y": x()}), ("'Y'", "did you mean 'y'")
    ),
    "a tensor that is not there": Wrong(lambda: diff(few, [2], op="causal_conv1d").only(["dz"]), ("'dz'", "dx")),
}

IN_MAGNITUDE_AND_REPLAY = {
    "magnitude of a number": Wrong(lambda: magnitude(5), ("x is 5", "tensor")),  # type: ignore[call-overload]
    "magnitude of a text": Wrong(lambda: magnitude("x"), ("x is 'x'", "tensor")),  # type: ignore[call-overload]
    "magnitude of a list": Wrong(lambda: magnitude([1.0]), ("x is [1.0]", "tensor")),  # type: ignore[call-overload]
    "magnitude of integers": Wrong(lambda: magnitude(torch.arange(3)), ("x is int64", "floating-point")),
    "replay of a number": Wrong(lambda: replay(5), ("path is 5", "replay file")),  # type: ignore[arg-type]
    "replay of None": Wrong(lambda: replay(None), ("path is None", "replay file")),  # type: ignore[arg-type]
    "replay of no file": Wrong(lambda: replay("no/such/file.json"), ("no/such/file.json", "No such file")),
    "replay of a folder": Wrong(lambda: replay(Path(__file__).parent), ("wrong_calls",)),
    "replay of a program": Wrong(lambda: replay(__file__), ("test_debug.py", "not JSON")),
    "replay elsewhere": Wrong(lambda: replay("x.json", device="gpu"), ("'gpu'", "cpu, cuda")),
    "replay of a target": Wrong(lambda: replay("x.json", target=5), ("target is", "package.module")),  # type: ignore[arg-type]
}

EVERY = {
    **{f"gradcheck: {name}": wrong for name, wrong in IN_GRADCHECK.items()},
    **{f"dot_product_test: {name}": wrong for name, wrong in IN_DOT_PRODUCT_TEST.items()},
    **{f"diff: {name}": wrong for name, wrong in IN_DIFF.items()},
    **IN_MAGNITUDE_AND_REPLAY,
}


@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_call_is_refused(name: str) -> None:
    assert_refused(EVERY[name])


HERE = "packproof.refs:causal_conv1d"
ON = f"{HERE} --op causal_conv1d --lengths 2"
COMMANDS = {
    "": ("target",),
    f"{HERE}": ("--lengths or --case", "neither came", "--lengths 3,0,5"),
    f"{ON} --case x.json": ("--lengths or --case", "both came"),
    f"{HERE} --lengths 2": ("which op", "causal_conv1d"),
    f"{HERE} --op conv --lengths 2": ("'conv'", "causal_conv1d"),
    f"{HERE} --op causal_conv1d --lengths 2,x": ("--lengths", "'2,x'", "3,0,5"),
    f"{HERE} --op causal_conv1d --lengths -1": ("--lengths", "'-1'"),
    f"{ON} --slack -1": ("--slack", "greater than or equal to 0"),
    f"{ON} --dtype fp23": ("'fp23'", "fp32"),
    f"{ON} --device gpu": ("'gpu'", "cpu, cuda"),
    f"{ON} --seed x": ("--seed", "whole number"),
    f"{ON} --sizes d": ("--sizes", "'d'", "d=64,w=4"),
    f"{ON} --sizes d=x": ("d = 'x'", "integer"),
    f"{ON} --sizes q=3": ("'q'", "d, w"),
    f"{ON} --inputs bias_": ("'bias_'", "did you mean 'bias'"),
    f"{ON} --options silu": ("--options", "'silu'", "activation=silu"),
    f"{ON} --options activation=relu": ("activation is 'relu'", "'silu'"),
    f"{ON} --options gelu=1": ("'gelu'", "activation"),
    f"{ON} --tensor dz": ("'dz'", "dx"),
    f"{ON} --reference conv": ("'conv'", "package.module:function"),
    f"{ON} --colour red": ("--colour",),
    "no_such_module:f --op rope --lengths 2": ("no_such_module",),
    "conv --op rope --lengths 2": ("'conv'", "package.module:function"),
    f"{HERE} --case no/such/file.json": ("no/such/file.json", "No such file"),
    f"{HERE} --case x.json --dtype bf16": ("--dtype", "--case"),
    f"{HERE} --case x.json --inputs bias": ("--inputs", "--case"),
    f"{HERE} --case x.json --slack 1": ("--slack", "--case"),
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diff", *line.split()]) == 2
    said = capsys.readouterr().err
    assert [word for word in COMMANDS[line] if word not in said] == [], said
    assert "Traceback" not in said


def test_there_are_many() -> None:
    assert len(EVERY) + len(COMMANDS) >= 80
