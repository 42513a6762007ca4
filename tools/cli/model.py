"""The commands for whole models: `packproof model`, and `packproof models`, the board."""

import math
import time
from typing import Annotated

import typer

from packproof.base.errors import UsageError
from packproof.base.names import (
    ATTENTION,
    CONVENTIONS,
    DEVICES,
    LABELS,
    MODES,
    parse_dtypes,
    parse_seconds,
    require_known,
    split_names,
)
from packproof.cli.ending import SUCCESS, exit_code, file_reports, follow
from packproof.cli.printing import section
from packproof.cli.usage import seed_option
from packproof.harness.process import set_isolation
from packproof.harness.process.start import fast_imports, hand_over, resumable, settle_early_zygote


@resumable
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
        typer.Option(
            help="eval, train (without dropout), checkpointing, selective, reentrant, accumulation, autocast, frozen; "
            "comma-separated  [default: eval]"
        ),
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
    details: Annotated[
        bool, typer.Option("--details", help="reasons in full, and each failure below the table of all conventions")
    ] = False,
    labels: Annotated[
        str,
        typer.Option(
            help="labels for the loss: every, first_ignored (-100 at the first token of each document), shifted "
            "(as shift_labels), none; auto takes those of the convention if forward takes labels"
        ),
    ] = "auto",
    profile: Annotated[str, typer.Option(help="how long the documents are: quick, standard or thorough")] = "standard",
    no_isolate: Annotated[
        bool,
        typer.Option("--no-isolate", help="run the module within no walls: it may write files and use the network"),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="seconds for the construction, and for each property", min=0.001, max=86_400)
    ] = 600,
    seed: Annotated[int, seed_option("another seed draws other weights and tokens")] = 0,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    junit: Annotated[str | None, typer.Option(help="write JUnit XML to this file")] = None,
    html: Annotated[str | None, typer.Option(help="write an HTML report to this file")] = None,
) -> int:
    """Check a module or a whole model: that each document of a pack computes as if it were alone.

    Without a convention every one is tried: a table says what comes of each, and the exit code is 0 if one holds.

    \b
    packproof model my_model.py:tiny --convention hf_flash_kwargs
    packproof model checkpoints/llama/config.json
    packproof model my_layers:Block --inputs 64 --convention cu_seqlens
    packproof model my_model.py:tiny --convention ends.py:ENDS --mode train
    packproof model checkpoints/llama --convention hf_position_ids --matrix
    packproof model --conventions
    """
    require_known("device", device, DEVICES)
    for name in split_names(mode):
        require_known("mode", name, MODES)
    for name in split_names(attention):
        require_known("attention", name, ATTENTION)
    require_known("labels", labels, LABELS)
    if matrix and (mode or attention or compile):
        raise UsageError("--matrix: it has every mode and attention, and torch.compile; leave out the options for them")
    dtype_names = parse_dtypes(dtype)
    for name in split_names(convention):
        if ":" not in name:
            require_known("convention", name, CONVENTIONS)
    if conventions:
        return _list_conventions()
    if target is None:
        raise UsageError("target: none came; expected package.module:Class, path/file.py:factory or a config.json")
    hand_over()
    with fast_imports():
        from packproof.cli.model_table import TableReport, print_conclusion  # noqa: PLC0415
        from packproof.cli.tried_conventions import TriedConventions  # noqa: PLC0415
        from packproof.harness.report.formats import TerminalReport  # noqa: PLC0415
        from packproof.models import module_request, run_module_check  # noqa: PLC0415
        from packproof.models.apart import ModuleProcess, ModuleSource, is_interpreted  # noqa: PLC0415

    files = file_reports(json=json, junit=junit, html=html)
    if no_isolate:
        set_isolation("none")
    settle_early_zygote(interpreted=is_interpreted(device), preload_compiler=compile or matrix)
    source = ModuleSource(
        target,
        tuple(split_names(convention) or CONVENTIONS),
        output,
        redraw=not keep_weights,
        seed=seed,
        without_kernels=without_kernels,
        matrix=matrix,
    )
    with ModuleProcess(source, device=device, seconds=timeout) as process:
        request = module_request(
            process,
            convention=split_names(convention) or None,
            inputs=inputs,
            output=output,
            redraw=not keep_weights,
            modes=split_names(mode) or ("eval",),
            attention=split_names(attention) or ("",),
            dtypes=dtype_names or (),
            compiled=compile,
            matrix=matrix,
            profile=profile,
            seed=seed,
            name=target,
            target=target,
            device=device,
            timeout=timeout,
            labels=labels,
        )
        events = run_module_check(request, in_own_processes=True)
        if request.explicit:
            return exit_code(follow(events, [TerminalReport(), *files]))
        end = follow(events, [TableReport(details=details), *map(TriedConventions, files)])
        return print_conclusion(end, len({str(setting) for setting in request.settings()}), details=details)


def _list_conventions() -> int:
    with fast_imports():
        from packproof.models import CONVENTIONS as conventions  # noqa: N811, PLC0415

    section("conventions", {name: entry.about for name, entry in conventions.items()})
    return SUCCESS


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="model types of transformers; default: all")
    ] = None,
    *,
    multimodal: Annotated[
        bool, typer.Option("--multimodal", help="models that read images: documents with images, and vision towers")
    ] = False,
    package: Annotated[
        str, typer.Option(help="whose models: transformers, or fla, flash-linear-attention's by cu_seqlens")
    ] = "transformers",
    device: Annotated[str, typer.Option(help="cpu or cuda; --package fla needs cuda, or TRITON_INTERPRET=1")] = "cpu",
    list_only: Annotated[bool, typer.Option("--list", help="show the model types, and run nothing")] = False,
    seed: Annotated[int, seed_option("another seed draws other weights and tokens")] = 0,
    max_time: Annotated[
        str | None, typer.Option(help="time that the run may take, such as 500s: it ends with the outcomes it has")
    ] = None,
    json: Annotated[str | None, typer.Option(help="write the results to this file")] = None,
    markdown: Annotated[str | None, typer.Option(help="write the board to this file")] = None,
    from_json: Annotated[
        str | None,
        typer.Option(
            "--from", help="make the board from files of --json, and run nothing; a later one replaces models"
        ),
    ] = None,
) -> int:
    """Try each convention on a small random model of each causal language model of the installed transformers.

    With --multimodal, on each one that reads images and writes text; with --package fla, on each one of
    flash-linear-attention, whose losses are asked by each criterion.

    A model that leaks is a finding, not a failure: the exit code is 0.

    \b
    packproof models llama mamba2 qwen3_next
    packproof models --json data/models.json --markdown docs/models_board.md
    packproof models --from data/models.json --markdown docs/models_board.md
    packproof models --multimodal qwen2_5_vl qwen3_5
    packproof models --package fla --device cuda gla kda
    """
    from importlib.metadata import version  # noqa: PLC0415

    with fast_imports():
        from packproof.base.files import replace_text, writable_path  # noqa: PLC0415
        from packproof.models.board import (  # noqa: PLC0415
            PACKAGES,
            Built,
            as_json,
            board_counts,
            board_kind,
            make_board,
            outcome_line,
            read_boards,
            run_board,
        )

    files = [
        writable_path(path, option) if path else None for path, option in ((json, "--json"), (markdown, "--markdown"))
    ]
    require_known("package", package, PACKAGES)
    require_known("device", device, DEVICES)
    seconds = parse_seconds(max_time, "--max-time") if max_time else math.inf
    kind = board_kind(multimodal=multimodal, package=package, device=device)
    if from_json:
        board = kind.require_own(read_boards(from_json))
    else:
        available_models = kind.architectures()
        selected_models = [
            available_models[require_known("model type", n, available_models, "packproof models --list")]
            for n in names or available_models
        ]
        if list_only:
            typer.echo("\n".join(f"{architecture.name}  {architecture.model}" for architecture in selected_models))
            return SUCCESS
        kind.require_device()
        start, results = time.monotonic(), []
        for result in run_board(selected_models, kind.judge, seed, kind.silence, start + seconds):
            results.append(result)
            if isinstance(result, Built):
                typer.echo(f"{result.name}: {result.reason or result.layers or 'one kind of layer'}")
            else:
                typer.echo(outcome_line(result))
        if time.monotonic() - start >= seconds:
            typer.echo(f"--max-time: {max_time} have passed; outcomes that are missing were not asked", err=True)
        versions = {name: version(name) for name in ("transformers", "torch")}
        versions |= {"package": version(kind.package)} if kind.package else {}
        board = make_board(results, time.monotonic() - start, seed, versions, kind.conventions, kind.device)
    for file, text in zip(files, (as_json(board), kind.as_markdown(board)), strict=True):
        if file:
            replace_text(file, text)
    typer.echo(board_counts(board))
    return SUCCESS
