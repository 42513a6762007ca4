"""The commands for whole models: `packproof model`, and `packproof models`, the board."""

import time
from importlib.metadata import version
from typing import Annotated

import typer

from packproof.harness.cli.ending import FAILED, HELD, Report, exit_code, files, follow
from packproof.harness.cli.printing import section
from packproof.harness.cli.usage import seed_option
from packproof.harness.results.names import ATTENTION, DEVICES, MODES, dtypes, known, listed
from packproof.harness.targets import fast_kernels
from packproof.harness.worker.settled import importing
from packproof.refs.errors import UsageError


def model(
    target: Annotated[
        str | None,
        typer.Argument(
            help="package.module:Class or path/file.py:factory, called without arguments, or a config.json of "
            "transformers, or a folder that has one"
        ),
    ] = None,
    *,
    convention: Annotated[
        list[str] | None,
        typer.Option(
            help="how the module learns where documents begin, by name, or your own as module:NAME; comma-separated  "
            "[default: try all]"
        ),
    ] = None,
    conventions: Annotated[bool, typer.Option("--conventions", help="list the conventions, and run nothing")] = False,
    inputs: Annotated[
        int | None, typer.Option(help="width of a token, for a module that takes no token ids", min=1)
    ] = None,
    output: Annotated[str | None, typer.Option(help="name of the output along tokens  [default: logits]")] = None,
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="keep its weights: matrices are drawn at random otherwise")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[
        list[str] | None, typer.Option(help="fp64, fp32, bf16, fp16; comma-separated  [default: the module's]")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="eval, train (without dropout), checkpointing; comma-separated  [default: eval]"),
    ] = None,
    attention: Annotated[
        list[str] | None,
        typer.Option(
            help="implementations of transformers: eager, sdpa, flex_attention, flash_attention_2, flash_attention_3; "
            "comma-separated  [default: the module's]"
        ),
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="run it through torch.compile")] = False,  # noqa: A002
    without_kernels: Annotated[
        bool,
        typer.Option("--without-kernels", help="make it as if no package of fast kernels were installed"),
    ] = False,
    matrix: Annotated[
        bool,
        typer.Option("--matrix", help="every attention, mode and dtype that it admits here, and torch.compile"),
    ] = False,
    profile: Annotated[str, typer.Option(help="how long the documents are: quick, standard or thorough")] = "standard",
    timeout: Annotated[
        float, typer.Option(help="seconds that one property of one setting may take", min=0.001, max=86_400)
    ] = 600,
    seed: Annotated[int, seed_option("another seed draws other weights and tokens")] = 0,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    junit: Annotated[str | None, typer.Option(help="write JUnit XML to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
) -> int:
    """Check a module or a whole model: that each document of a pack computes as if it were alone.

    Without a convention every one is tried, and the exit code is 0 if documents are isolated by any.

    \b
    packproof model my_model.py:tiny --convention hf_flash_kwargs
    packproof model checkpoints/llama/config.json
    packproof model my_layers:Block --inputs 64 --convention cu_seqlens
    packproof model my_model.py:tiny --convention my_conventions.py:ENDS --mode train --dtype bf16,fp32
    packproof model checkpoints/llama --convention hf_position_ids --matrix
    packproof model --conventions
    """
    known("device", device, DEVICES)
    for name in listed(mode):
        known("mode", name, MODES)
    for name in listed(attention):
        known("attention", name, ATTENTION)
    if matrix and (mode or attention or compile):
        raise UsageError("--matrix: it has every mode and attention, and torch.compile; leave out the options for them")
    kinds = dtypes(dtype)
    if without_kernels:
        fast_kernels.hide()
    with importing():
        import torch  # noqa: PLC0415

        from packproof.harness.modules.check import holds, module_request, run_module_check, sorted_out  # noqa: PLC0415
        from packproof.harness.modules.conventions import CONVENTIONS, convention_named  # noqa: PLC0415
        from packproof.harness.modules.target import module_named  # noqa: PLC0415
        from packproof.harness.reports.terminal import TerminalReport  # noqa: PLC0415

    if conventions:
        section("conventions", {name: each.about for name, each in CONVENTIONS.items()})
        return HELD
    for name in listed(convention):
        convention_named(name)
    if target is None:
        raise UsageError("target: none came; expected package.module:Class, path/file.py:factory or a config.json")
    torch.set_num_threads(1)  # forks of this process must not inherit a pool of threads
    torch.manual_seed(seed)  # for weights drawn while the module is built
    request = module_request(
        module_named(target),
        convention=listed(convention) or None,
        inputs=inputs,
        output=output,
        redraw=not keep_weights,
        modes=listed(mode) or ("eval",),
        attention=listed(attention) or ("",),
        dtypes=kinds or (),
        compiled=compile,
        matrix=matrix,
        profile=profile,
        seed=seed,
        name=target,
        target=target,
        device=device,
        timeout=timeout,
    )
    reports: list[Report] = [TerminalReport(), *files(json=json, junit=junit, html=html)]
    end = follow(run_module_check(request, apart=True), reports)
    if request.explicit or end.error or end.interrupted or end.unwritten:
        return exit_code(end)
    typer.echo("\n".join(f"{what}: {', '.join(names)}" for what, names in sorted_out(end).items() if names))
    return HELD if holds(request, end) else FAILED


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="model types of transformers; default: all")
    ] = None,
    *,
    list_only: Annotated[bool, typer.Option("--list", help="show the model types, and run nothing")] = False,
    seed: Annotated[int, seed_option("another seed draws other weights and tokens")] = 0,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    markdown: Annotated[str | None, typer.Option(help="write the board to this file")] = None,
    from_json: Annotated[
        str | None, typer.Option("--from", help="make the board from a file of --json, and run nothing")
    ] = None,
) -> int:
    """Try each convention on a small random model of each causal language model of the installed transformers.

    A model that leaks is a finding, not a failure: the exit code is 0.

    \b
    packproof models llama mamba2 qwen3_next
    packproof models --json data/models.json --markdown docs/models_board.md
    packproof models --from data/models.json --markdown docs/models_board.md
    """
    with importing():
        from packproof.harness.architectures import page  # noqa: PLC0415
        from packproof.harness.architectures.board import Built, run_board  # noqa: PLC0415
        from packproof.harness.architectures.tiny import architectures  # noqa: PLC0415
        from packproof.harness.results.files import replace_text, writable  # noqa: PLC0415
        from packproof.harness.results.names import known  # noqa: PLC0415

    files = [writable(path, option) if path else None for path, option in ((json, "--json"), (markdown, "--markdown"))]
    if from_json:
        board = page.read(from_json)
    else:
        every = architectures()
        chosen = [every[known("model type", n, every, "packproof models --list")] for n in names or every]
        if list_only:
            typer.echo("\n".join(f"{each.name}  {each.model}" for each in chosen))
            return HELD
        started, found = time.monotonic(), []
        for result in run_board(chosen, seed):
            found.append(result)
            if isinstance(result, Built):
                typer.echo(f"{result.name}: {result.reason or result.layers or 'one kind of layer'}")
            else:
                typer.echo(page.line(result))
        versions = {name: version(name) for name in ("transformers", "torch")}
        board = page.gathered(found, time.monotonic() - started, seed, versions)
    for file, text in zip(files, (page.as_json(board), page.as_markdown(board)), strict=True):
        if file:
            replace_text(file, text)
    typer.echo(page.counts(board))
    return HELD
