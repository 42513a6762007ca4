"""The program of a module's process: it builds the module, and its forks answer the questions of the laws.

Where the import has initialised CUDA, which no fork can use, each of these processes builds the module itself.

Every word from here may be the module's own.
"""

import socket
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from packproof.base.errors import PackproofError
from packproof.base.machine import limited_to_free_memory
from packproof.base.records import from_json
from packproof.harness.process.naming import Location
from packproof.harness.process.programs import Frame, become_zygote, serve
from packproof.models.apart.messages import ModuleSource, decode_record, encode_record, method_kinds
from packproof.models.running.construction import local_module
from packproof.models.running.local_module import LocalModule, PickOutput
from packproof.models.subjects.conventions import Convention, find_convention
from packproof.models.subjects.fast_kernels import hide_packages
from packproof.models.subjects.modes import supported_modes
from packproof.models.subjects.tested_module import ModuleCall
from packproof.models.target import load_module

_SHORT = 600  # tokens; a longer call may need more memory than there is


@dataclass(frozen=True)
class _BuiltModule:
    module: LocalModule
    conventions: Mapping[str, Convention]


def run(order: Mapping[str, Any], state: Any, channel: socket.socket) -> int:
    """The program: of the process that builds the module, or of a fork of it."""
    if "source" in order:
        return serve(order, channel, partial(_build, order, channel))
    return serve(order, channel, partial(_answer_all, state()))


def _build(order: Mapping[str, Any], channel: socket.socket, requests: Iterator[Frame]) -> Iterator[Frame]:
    """Yields one frame, the facts of the module or why there is none, and then forks its processes.

    With `answers` in its order, this process answers the requests itself.
    """
    source: ModuleSource = from_json(ModuleSource, order["source"])
    if source.without_kernels:
        hide_packages()
    torch.manual_seed(source.seed)  # for weights drawn while the module is built
    try:
        conventions = {name: find_convention(name) for name in source.conventions}
        module = load_module(source.target)
        local = local_module(module, _output(source.output), redraw=source.redraw, seed=source.seed)
        needs_modes = source.matrix and not order.get("answers")  # the first process has told them
        modes, notes = supported_modes(local.module) if needs_modes else ((), ())
    except PackproofError as error:
        yield _error_frame(error, 0)
        return
    built = _BuiltModule(local, {c.name: c for c in conventions.values()})
    if order.get("answers"):
        yield from _answer_all(built, requests)
        return
    user_conventions = [_facts_of_convention(c, address) for address, c in conventions.items() if ":" in address]
    facts, _ = encode_record(local.facts)
    body = {"facts": facts, "conventions": user_conventions, "modes": encode_record(modes)[0], "notes": notes}
    body["forks"] = not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    yield Frame("built", body=body)
    become_zygote(channel, built)


def _output(name: str | None) -> str | PickOutput | None:
    """The name of an output, or the function at an address."""
    return Location.parse(name).load() if name and ":" in name else name


def _facts_of_convention(convention: Convention, address: str) -> dict[str, Any]:
    """All but the function: see `module_process.ConventionFacts`."""
    names = ("name", "about", "optional", "batched", "padding", "labels")
    return {"is": "ConventionFacts", "address": address, **{n: getattr(convention, n) for n in names}}


def _answer_all(built: _BuiltModule, requests: Iterator[Frame]) -> Iterator[Frame]:
    modules = {0: built.module}
    yield Frame("ready")
    for request in requests:
        yield _answer(request, modules, built.conventions)


def _answer(request: Frame, modules: dict[int, LocalModule], conventions: Mapping[str, Convention]) -> Frame:
    try:
        for number in request.body["dropped"]:
            modules.pop(number, None)
        module = modules[request.body["module"]]
        result = _call(module, request, modules, conventions)
        body, tensors = encode_record(result)
        return Frame("result", request.number, {"result": body}, tensors)
    except PackproofError as error:
        return _error_frame(error, request.number)
    except Exception:
        return Frame("broken", request.number, {"text": traceback.format_exc()})


def _call(
    module: LocalModule, request: Frame, modules: dict[int, LocalModule], conventions: Mapping[str, Convention]
) -> Any:
    method, device = request.kind, module.facts.device
    kinds = method_kinds(method)
    arguments = {
        name: modules[value]
        if kinds[name] is Self
        else decode_record(kinds[name], value, request.tensors, device=device, conventions=conventions)
        for name, value in request.body["arguments"].items()
    }
    call = arguments.get("call")
    is_long = isinstance(call, ModuleCall) and call.pack.tokens > _SHORT
    with limited_to_free_memory() if is_long and device == "cpu" else nullcontext():
        result = getattr(module, method)(**arguments)
    if kinds["return"] is Self:
        modules[request.body["target"]] = result
        return None
    return result


def _error_frame(error: PackproofError, number: int) -> Frame:
    mistake = getattr(error, "mistake", "")
    return Frame("refused", number, {"error": type(error).__name__, "text": str(error), "mistake": mistake})
