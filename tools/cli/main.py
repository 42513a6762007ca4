"""The command line: its commands, and the exit code and message for each kind of error."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from packproof.base.errors import BrokenInstallation, MissingWallError, OutOfTime, PackproofError
from packproof.cli import backtest, check, diff, explain, model, museum, mutate, packs, proof, table
from packproof.cli.bench import group as bench
from packproof.cli.completion import complete_values, joined_words
from packproof.cli.ending import INCONCLUSIVE, INTERNAL_ERROR, INTERRUPTED, WRONG_CALL, error_summary, say
from packproof.cli.grading import many
from packproof.cli.usage import usage_message
from packproof.version import __version__

_EXIT_CODES = {MissingWallError: INTERNAL_ERROR, OutOfTime: INCONCLUSIVE}  # of packproof's errors; else WRONG_CALL
_CommandLineError: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer imports from different places

app = typer.Typer(
    pretty_exceptions_enable=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)
app.add_typer(bench.app, name="bench")
app.add_typer(museum.app, name="museum")
app.add_typer(packs.app, name="packs")
for command in (
    *(
        check.check,
        check.contract,
        check.grade,
        many.grades,
        check.peers,
        check.replay,
        explain.explain,
        diff.diff,
        model.model,
        model.models,
    ),
    *(table.table, mutate.mutate, backtest.backtest, proof.proof),
):
    app.command()(command)
app.command(name="list")(explain.list_everything)
complete_values(app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"packproof {__version__}")
        raise typer.Exit


@app.callback()
def about(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Prove that a kernel for packed variable-length sequences computes each sequence as if it were alone.

    Exit codes: 0 every property held, 1 a property failed, 2 the call was wrong, 3 packproof itself failed, 4 no
    property failed, but not everything could be judged.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. An invalid one prints one line on stderr."""
    command_line = list(arguments) or ["--help"]
    with joined_words():
        return _errors_as_exit_codes(
            lambda: app(command_line, prog_name="packproof", standalone_mode=False), command_line
        )


def resume(name: str, arguments: Mapping[str, Any]) -> int:
    """Run a command with arguments parsed by another process, and return its exit code."""
    module = model if name == model.model.__name__ else check
    return _errors_as_exit_codes(lambda: getattr(module, name)(**arguments))


def _errors_as_exit_codes(command: Callable[[], Any], arguments: Sequence[str] = ()) -> int:
    try:
        return int(command() or 0)
    except BrokenInstallation as error:
        return say(f"packproof itself failed: {error}", INTERNAL_ERROR)
    except PackproofError as error:
        codes = (code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
        return say(str(error), next(codes, WRONG_CALL))
    except (typer.Abort, KeyboardInterrupt):
        return say("interrupted", INTERRUPTED)
    except Exception as error:
        if isinstance(error, _CommandLineError):
            return say(usage_message(error, arguments), WRONG_CALL)
        traceback.print_exc()
        return say(f"packproof itself failed: {error_summary(error)}", INTERNAL_ERROR)
