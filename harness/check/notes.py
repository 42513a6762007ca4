"""Notes of a plan: untested releases, and features that a kernel does not offer."""

from collections.abc import Iterator, Sequence

from packproof.adapters.peers import PEERS
from packproof.base.hub.repositories import PREFIX, is_hub
from packproof.base.importing import shadowed_file
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.process.naming import Location
from packproof.properties.declarations import needed_inputs
from packproof.properties.snippets import dict_text, suggested_adapter
from packproof.version import untried


def release_notes(targets: Sequence[CheckTarget]) -> Iterator[str]:
    """Notes on untested releases, with the results of their self-tests."""
    devices = {target.request.device for target in targets}
    misfit = next((target.misfit for target in targets if target.misfit), "")
    for package, sentence in untried():
        if package == "torch":
            from packproof.harness.process.execution import require_sound_judgement  # noqa: PLC0415  (seldom needed)

            require_sound_judgement(sentence)
        unproved = package == "triton" and (misfit or devices != {"cpu"})  # its self-test proves nothing for a GPU
        yield sentence if unproved else f"{sentence}; self-test passed"
    if misfit:
        yield f"Triton kernels cannot be interpreted: {misfit}"


def feature_notes(target: CheckTarget) -> Iterator[str]:
    """Features this kernel does not offer, and is therefore not tested for."""
    if target.unpromised:
        return
    declared = target.declared
    if isinstance(target.kernel, str) and is_hub(target.kernel):
        yield f"{target.name} is that of {Location.parse(target.kernel).module.removeprefix(PREFIX)}"
    module = target.kernel.rpartition(":")[0] if isinstance(target.kernel, str) else ""
    if not module.endswith(".py") and target.kernel not in PEERS and (installed := shadowed_file(module)):
        yield f"{target.name}: {module} of the current folder, which comes before the installed {installed}"
    catch_all_names = target.missing_names if declared.catch_all else []
    if absent := [name for name in target.missing_features if name not in catch_all_names]:
        yield f"{target.name} does not take, so it is not tested for: {', '.join(absent)}"
    if catch_all_names:
        yield (
            f"{target.name} takes by its catch-all alone (**kwargs), which may ignore them, so they are not passed: "
            f"{', '.join(catch_all_names)}; name those that it supports in its signature, or in an adapter's names: "
            f"{'; '.join(target.pasted.adapter({'names': dict_text({n: repr(n) for n in catch_all_names})}))}"
        )
    if declared.fixed:
        values = ", ".join(f"{name}={value!r}" for name, value in declared.fixed.items())
        yield f"{target.name} has fixed, so it is not tested without: {values}"
    if metadata := declared.metadata(target.op):
        yield f"{target.name} takes {', '.join(metadata)}: made of cu_seqlens"
    if omitted := declared.omitted_metadata(target.op):
        lines = suggested_adapter(target.pasted, [], omitted, packs_keys=target.op.packs_keys)
        names = ", ".join(omitted)
        yield f"{target.name} has defaults for {names} beside cu_seqlens, which stay; to pass them: {'; '.join(lines)}"
    if needed := needed_inputs(target.op, declared).texts:
        yield f"{target.name} has no default for, so it is not tested without: {', '.join(needed)}"
    if unjudged := target.unjudged_defaults:
        yield (
            f"{target.name} has a default for {', '.join(unjudged)}, but {target.op.name} requires it and has no "
            f"neutral value for it, so it is not tested without; Op(neutral=...) declares one"
        )
    if not target.gradients:
        yield f"{target.name}: gradients are not judged"
