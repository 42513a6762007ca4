"""The command `packproof bench`: its subcommands, of which `kernels` is the default."""

from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperGroup

from packproof.base.names import did_you_mean
from packproof.cli.bench.kernels import kernels
from packproof.cli.bench.ranks import ranks
from packproof.cli.bench.stack import stack
from packproof.cli.bench.tables import fp8, packing

_HELP = ("-h", "--help")


class _KernelsByDefault(TyperGroup):
    """A group whose subcommand `kernels` may be left out. The name of another may follow its options."""

    default = "kernels"
    """The name of the default subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        name, position = self._first_argument(args)
        if name in self.commands:
            return super().parse_args(ctx, [name, *args[:position], *args[position + 1 :]])
        if ":" not in name and did_you_mean(name, self.commands) and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{name}'")  # no target either: a target has a colon
        completes_name = ctx.resilient_parsing and not args
        return super().parse_args(
            ctx, args if args[:1] in ([name] for name in _HELP) or completes_name else [self.default, *args]
        )

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The subcommands, and the options of the default one."""
        default = self.commands[self.default]
        default_context = default.make_context(self.default, [], parent=ctx, resilient_parsing=True)
        completions = [*super().shell_complete(ctx, incomplete), *default.shell_complete(default_context, incomplete)]
        return list({completion.value: completion for completion in completions}.values())

    @staticmethod
    def _first_argument(arguments: list[str]) -> tuple[str, int]:
        """The first argument that is neither an option nor its value, and its position; "" if there is none.

        Every option but --help takes a value, so `bench --tokens 4096 fp8` has one.
        """
        for position, (previous, argument) in enumerate(pairwise(["", *arguments])):
            is_value = previous.startswith("--") and previous not in _HELP and "=" not in previous
            if not argument.startswith("-") and not is_value:
                return argument, position
        return "", 0


app = typer.Typer(cls=_KernelsByDefault, add_completion=False)
for command in (kernels, packing, stack, ranks, fp8):
    app.command()(command)


@app.callback()
def bench() -> None:
    """Time kernels next to their peers, and measure what packs gain. Without a command: `kernels`.

    \b
    packproof bench
    packproof bench --op ssd --against mamba_ssm:ssd --layout L2 --json ssd.json
    packproof bench my_kernels:conv --op causal_conv1d --against reference
    packproof bench packing
    packproof bench stack --model mamba2-1.4b --tokens 8192 --json stack.json
    packproof bench ranks --json ranks.json
    packproof bench fp8 --tokens 4096
    packproof bench kernels --help
    """
