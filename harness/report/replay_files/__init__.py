"""The files that reproduce a failure: of a kernel, and of a module."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.report.replay_files.module_record import MODULE_KIND, ModuleRecord
    from packproof.harness.report.replay_files.replay_file import (
        describe_replay,
        read_content,
        read_replay,
        write_replay,
    )

__all__ = ["MODULE_KIND", "ModuleRecord", "describe_replay", "read_content", "read_replay", "write_replay"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.report.replay_files.module_record": ("MODULE_KIND", "ModuleRecord"),
        "packproof.harness.report.replay_files.replay_file": (
            "describe_replay",
            "read_content",
            "read_replay",
            "write_replay",
        ),
    },
)
