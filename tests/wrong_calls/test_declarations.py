"""Wrong calls of what declares an op, a kernel, a convention, a property or a domain: refused where it is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from packproof import Domain, Op, Promises, Property, adapters, kernel, magnitude, replay
from tests.wrong_calls.refused import Wrong, assert_refused


def rope(x, cos, sin, *, cu_seqlens):
    return x


def scaled(x, *, cu_seqlens):
    return 3 * x


def promises(**fields: Any) -> Callable[[], object]:
    return lambda: Promises(**fields)


def domain(texts: Any) -> Callable[[], object]:
    return lambda: Domain.of(texts)


def declared(**fields: Any) -> Callable[[], object]:
    return lambda: kernel(**{"op": "rope", **fields})(rope)


def op(**fields: Any) -> Callable[[], object]:
    valid = {"name": "scaled", "reference": scaled, "inputs": {"x": "t d"}, "outputs": {"y": "t d"}}
    return lambda: Op(**{**valid, **fields})


def law(**fields: Any) -> Callable[[], object]:
    return lambda: Property(**{"name": "mine", "law": "A law.", "check": scaled, **fields})


def adapted(target: Any = rope, **fields: Any) -> Callable[[], object]:
    return lambda: adapters.adapt(target, **{"op": "rope", **fields})


LISTED = [0, 2]
FLOATS = torch.tensor([0.0, 2.0])
WRONG = {
    "promises: grid": Wrong(promises(grid="tokens"), ("grid is 'tokens'", "'sequence', 'token', 'pack'")),
    "promises: grid a number": Wrong(promises(grid=1), ("grid is 1", "'sequence'")),
    "promises: compute": Wrong(promises(compute="bf16"), ("compute is 'bf16'", "'fp32', 'operand', 'tf32'")),
    "promises: state_entry": Wrong(promises(state_entry="in"), ("state_entry is 'in'", "'carry', 'folded'")),
    "promises: deterministic": Wrong(promises(deterministic="yes"), ("deterministic is 'yes'", "True or False")),
    "promises: isolated": Wrong(promises(isolated=1), ("isolated is 1", "True or False")),
    "promises: cumsum": Wrong(promises(cumsum=None), ("cumsum is None", "True or False")),
    "promises: capturable": Wrong(promises(capturable="no"), ("capturable is 'no'", "True or False")),
    "promises: steady": Wrong(promises(steady=1), ("steady is 1", "True or False")),
    "promises: saved_outputs": Wrong(promises(saved_outputs="y"), ("saved_outputs is 'y'", "True or False")),
    "promises: chunk zero": Wrong(promises(chunk=0), ("chunk is 0", "at least 1")),
    "promises: chunk a string": Wrong(promises(chunk="64"), ("chunk is '64'", "a number of tokens")),
    "promises: segment": Wrong(promises(chunk=64, segment=65), ("segment is 65 but chunk is 64",)),
    "domain: a number": Wrong(domain(8), ("domain: 8", "'d % 8 == 0'")),
    "domain: None": Wrong(domain(None), ("domain: None", "conditions")),
    "domain: of a number": Wrong(domain([8]), ("domain: [8]", "conditions")),
    "domain: cut short": Wrong(domain("k in"), ("'k in' cannot be read",)),
    "domain: a call": Wrong(domain("f(k)"), ("'f(k)'", "expected comparisons")),
    "domain: text for conditions": Wrong(lambda: Domain("k == 1"), ("conditions is 'k == 1'", "Domain.of(")),  # type: ignore[arg-type]
    "domain: an unknown name": Wrong(lambda: Domain.of("k == 1").holds({}), ("'k == 1'", "'k' is not defined")),
    "kernel: op a number": Wrong(declared(op=5), ("op is 5", "packproof.Op")),
    "kernel: promises a dict": Wrong(
        declared(promises={"chunk": 1}), ("promises is {'chunk': 1}", "packproof.Promises")
    ),
    "kernel: dtypes a string": Wrong(declared(dtypes="fp32"), ("dtypes is 'fp32'", "a list of fp64, fp32, bf16, fp16")),
    "kernel: dtypes unknown": Wrong(declared(dtypes=["f32"]), ("dtypes has 'f32'", "a list of fp64, fp32")),
    "kernel: dtypes of torch": Wrong(declared(dtypes=[torch.int8]), ("dtypes has torch.int8", "fp32")),
    "kernel: dtypes empty": Wrong(declared(dtypes=[]), ("dtypes is []", "a list of fp64, fp32")),
    "kernel: domain": Wrong(declared(domain=8), ("domain: 8", "conditions")),
    "kernel: domain of a number": Wrong(declared(domain=["d % 8"]), ("'d % 8' is a number", "write 'd % 8 == 0'")),
    "kernel: domain with a comma": Wrong(declared(domain="length > 0, d == 8"), ("write 'length > 0; d == 8'",)),
    "kernel: refuses a string": Wrong(declared(refuses="only"), ("refuses is 'only'", "a list")),
    "kernel: refuses of a type": Wrong(declared(refuses=[ValueError]), ("refuses has <class 'ValueError'>", "strings")),
    "kernel: gradients": Wrong(declared(gradients="no"), ("gradients is 'no'", "True or False")),
    "kernel: slack": Wrong(declared(slack=0), ("slack is 0", "True or False")),
    "kernel: mixed": Wrong(declared(mixed=None), ("mixed is None", "True or False")),
    "kernel: no function": Wrong(lambda: kernel(op="rope")(5), ("is 5, expected a function",)),  # type: ignore[type-var]
    "kernel: float32 a string": Wrong(declared(float32="bias"), ("float32 is 'bias'", "a list: float32=['weight'")),
    "kernel: narrow a string": Wrong(declared(narrow="bias"), ("narrow is 'bias'", "a list: narrow=['D'")),
    "op: narrow that is not fixed": Wrong(op(narrow={"x"}), ("narrow", "'x'", "fixed inputs")),
    "op: where a number": Wrong(op(where=("d % 8",)), ("op 'scaled': where: 'd % 8'", "write 'd % 8 == 0'")),
    "op: where of another": Wrong(op(where=("k % 8 == 0",)), ("op 'scaled': where is 'k % 8 == 0'", "sizes: d")),
    "op: where a size": Wrong(op(where=("d",)), ("op 'scaled': where is 'd'", "comparisons of sizes")),
    "op: float32 of another": Wrong(op(float32={"bias"}), ("float32", "'bias'", "inputs")),
    "op: draws a position in no table": Wrong(
        op(inputs={"x": "t d", "at": "s"}, draws={"at": "position|m"}), ("draws['at'] is 'position|m'", "an axis: d")
    ),
    "op: draws a position of a token": Wrong(op(draws={"x": "position|d"}), ("inputs['x'] is 't d'", "'s', or 's?'")),
    "op: draws a position with a gradient": Wrong(
        op(inputs={"x": "t d", "at": "s"}, draws={"at": "position|d"}), ("constants", "at, which has no gradient")
    ),
    "op: name empty": Wrong(op(name=""), ("name is ''", "a name")),
    "op: name a number": Wrong(op(name=5), ("name is 5", "a name")),
    "op: reference": Wrong(op(reference="scaled"), ("op 'scaled': reference is 'scaled'", "a function")),
    "op: inputs a list": Wrong(op(inputs=["x"]), ("inputs is ['x']", "{'x': 't d'}")),
    "op: inputs empty": Wrong(op(inputs={}), ("inputs is {}", "at least one tensor")),
    "op: inputs without axes": Wrong(op(inputs={"x": ""}), ("inputs['x'] is ''", "'t d'")),
    "op: inputs of a number": Wrong(op(inputs={"x": 5}), ("inputs['x'] is 5", "'t d'")),
    "op: inputs no axis": Wrong(op(inputs={"x": "t +"}), ("'+' is not an axis", "a name such as d")),
    "op: no tokens": Wrong(op(inputs={"x": "s d"}, outputs={"y": "s d"}), ("a tensor along t", "'s d'")),
    "op: outputs empty": Wrong(op(outputs={}), ("outputs is {}", "at least one tensor")),
    "op: sizes a dict": Wrong(op(sizes={"d": 3}), ("sizes is {'d': 3}", "({'d': 3},)")),
    "op: sizes empty": Wrong(op(sizes=()), ("sizes is ()", "({'d': 3},)")),
    "op: sizes incomplete": Wrong(op(sizes=({"e": 3},)), ("sizes is {'e': 3}", "a size for axis d")),
    "op: sizes zero": Wrong(op(sizes=({"d": 0},)), ("the size of d is 0", "above zero")),
    "op: sizes a fraction": Wrong(op(sizes=({"d": 2.5},)), ("the size of d is 2.5", "above zero")),
    "op: model_sizes": Wrong(op(model_sizes=({},)), ("model_sizes is {}", "a size for axis d")),
    "op: options a list": Wrong(op(options=["a"]), ("options is ['a']", "a dict")),
    "op: options empty": Wrong(op(options={"a": ()}), ("options['a'] is ()", "the plainest first")),
    "op: options a string": Wrong(op(options={"a": "silu"}), ("options['a'] is 'silu'", "a tuple of values")),
    "op: draws of no input": Wrong(op(draws={"z": "unit"}), ("draws has 'z'", "names of inputs: x")),
    "op: draws unknown": Wrong(
        op(draws={"x": "uniform"}),
        ("draws['x'] is 'uniform'", "decay, step, unit, direction, share, log rate, distinct"),
    ),
    "op: fixed a string": Wrong(op(fixed="x"), ("fixed is 'x'", "names of inputs and outputs: x, y")),
    "op: fixed unknown": Wrong(op(fixed=frozenset({"z"})), ("fixed has 'z'", "x, y")),
    "op: constants unknown": Wrong(op(constants={"z"}), ("constants has 'z'", "names of inputs: x")),
    "op: saved unknown": Wrong(op(saved={"y"}), ("saved has 'y'", "names of inputs: x")),
    "op: on_request, an output": Wrong(op(on_request={"z": "b"}), ("on_request has 'z'", "names of outputs: y")),
    "op: on_request, an option": Wrong(op(on_request={"y": "b"}), ("on_request has 'b'", "names of options")),
    "op: reach": Wrong(op(reach="window_size"), ("reach is 'window_size'", "the name of an option, or None")),
    "op: on_request, text": Wrong(op(on_request="lse"), ("on_request is 'lse'", "{'lse': 'return_lse'}")),
    "op: carry": Wrong(op(carry=("a", "b", "c")), ("carry is ('a', 'b', 'c')", "an input, an output, an option")),
    "op: pool": Wrong(op(pool=("a", "b", "c")), ("pool is ('a', 'b', 'c')", "an input and an output along c")),
    "op: pool without its axis": Wrong(
        op(
            inputs={"x": "t d", "at": "s", "states": "d"},
            outputs={"y": "t d", "new_states": "c d"},
            sizes=({"d": 3, "c": "slots"},),
            draws={"at": "slot|c"},
            constants={"at"},
            pool=("at", "states", "new_states"),
        ),
        ("pool is ('at', 'states', 'new_states')", "an input and an output along c"),
    ),
    "op: draws a slot of no pool": Wrong(
        op(inputs={"x": "t d", "at": "s"}, draws={"at": "slot|c"}), ("draws['at'] is 'slot|c'", "an axis: d")
    ),
    "op: window": Wrong(op(window="w"), ("window is 'w'", "an axis: d")),
    "op: causal": Wrong(op(causal="causal"), ("causal is 'causal'", "the name of an option")),
    "op: absolute": Wrong(op(absolute=5), ("absolute is 5", "a function, or None")),
    "op: flops": Wrong(op(flops=1e9), ("flops is 1000000000.0", "a function, or None")),
    "property: name empty": Wrong(law(name=""), ("property: name is ''", "a name")),
    "property: law": Wrong(law(law=None), ("property 'mine': law is None", "a sentence")),
    "property: check": Wrong(law(check="check"), ("check is 'check'", "a function")),
    "property: cases": Wrong(law(cases=[]), ("cases is []", "a function")),
    "property: shares": Wrong(law(shares="all"), ("shares is 'all'", "'reference', 'runs', 'nothing'")),
    "adapt: target a number": Wrong(adapted(5), ("target is 5", "package.module:function")),
    "adapt: target without a function": Wrong(adapted("m"), ("target is 'm'", "package.module:function")),
    "adapt: op misspelt": Wrong(adapted(op="rop"), ("op: 'rop' is not known", "rope_qk")),
    "adapt: op a number": Wrong(adapted(op=5), ("op is 5", "packproof.Op")),
    "adapt: tokens a string": Wrong(adapted(tokens="batched"), ("tokens is 'batched'", "Batched()")),
    "adapt: tokens a class": Wrong(adapted(tokens=adapters.Batched), ("tokens is <class", "Batched()")),
    "adapt: metadata a list": Wrong(adapted(metadata=["seq_idx"]), ("metadata is ['seq_idx']", "a dict")),
    "adapt: metadata no function": Wrong(adapted(metadata={"a": 5}), ("metadata 'a' is 5", "a function")),
    "adapt: names a list": Wrong(adapted(names=["x"]), ("names is ['x']", "a dict")),
    "adapt: names unknown": Wrong(adapted(names={"q": "x"}), ("names has 'q'", "x, cos, sin")),
    "adapt: given": Wrong(adapted(given=5), ("given is 5", "a dict")),
    "adapt: without unknown": Wrong(adapted(without=("z",)), ("without has 'z'", "interleaved")),
    "adapt: in_place of a server": Wrong(
        adapted(op="ssd_update", in_place=("A",)),
        ("in_place has 'A'", "inputs along the tokens or the pool", "states"),
    ),
    "adapt: in_place": Wrong(adapted(in_place=("cos",)), ("in_place has 'cos'", "inputs along the tokens: x")),
    "adapt: declines": Wrong(adapted(declines="no"), ("declines is 'no'", "a function, or None")),
    "adapt: refuses a string": Wrong(adapted(refuses="only"), ("refuses is 'only'", "a list")),
    "adapt: promises a dict": Wrong(adapted(promises={}), ("promises is {}", "packproof.Promises")),
    "adapt: dtypes a string": Wrong(adapted(dtypes="fp32"), ("adapt(rope): dtypes is 'fp32'", "a list of")),
    "adapt: dtypes empty": Wrong(adapted(dtypes=()), ("dtypes is ()", "a list of")),
    "adapt: domain of a number": Wrong(adapted(domain="k % 8"), ("'k % 8' is a number", "write 'k % 8 == 0'")),
    "adapt: a size for a domain": Wrong(adapted(domain="k"), ("'k' without a comparison", "write 'k == 8'")),
    "adapt: domain": Wrong(adapted(domain="z == 1"), ("'z' in 'z == 1'", "there are h, k")),
    "Batched: axis": Wrong(lambda: adapters.Batched(0), ("axis is 0", "2 (heads first)")),
    "Padded: axis": Wrong(lambda: adapters.Padded(axis="1"), ("axis is '1'", "2 (heads first)")),  # type: ignore[arg-type]
    "Padded: fill": Wrong(lambda: adapters.Padded(fill="1"), ("Padded: fill is '1'", "a number")),  # type: ignore[arg-type]
    "Gaps: multiple zero": Wrong(lambda: adapters.Gaps(0), ("multiple is 0", "at least 1")),
    "Gaps: multiple a fraction": Wrong(lambda: adapters.Gaps(1.5), ("multiple is 1.5", "at least 1")),  # type: ignore[arg-type]
    "Gaps: fill": Wrong(lambda: adapters.Gaps(fill=None), ("Gaps: fill is None", "a number")),  # type: ignore[arg-type]
    "per_token: outside": Wrong(lambda: adapters.per_token(outside="0"), ("outside is '0'", "a number")),  # type: ignore[arg-type]
    "magnitude: a number": Wrong(lambda: magnitude(5), ("magnitude: x is 5", "floating-point")),  # type: ignore[call-overload]
    "magnitude: integers": Wrong(lambda: magnitude(torch.tensor([1])), ("int64", "floating-point")),
    "replay: a number": Wrong(lambda: replay(5), ("path is 5", "the path of a replay file")),  # type: ignore[arg-type]
    "replay: no file": Wrong(lambda: replay("no-such-file.json"), ("no-such-file.json", "No such file")),
}
METADATA = (
    "cu_seqlens",
    "cu_seqlens_int32",
    "cu_seqlens_int64",
    "lengths",
    "max_seqlen",
    "seq_idx",
    "position_ids",
    "mask",
)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_declaration_is_refused(wrong: Wrong) -> None:
    assert_refused(wrong)


@pytest.mark.parametrize("name", METADATA)
def test_metadata_takes_offsets(name: str) -> None:
    make = getattr(adapters, name)
    assert_refused(Wrong(lambda: make(LISTED, 2), ("cu_seqlens is a list", "int32 or int64 tensor (s + 1,)")))
    assert_refused(Wrong(lambda: make(FLOATS, 2), ("cu_seqlens is float32", "int32 or int64")))
