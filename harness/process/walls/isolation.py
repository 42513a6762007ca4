"""How much a kernel is isolated, as its caller asks for. Light: the command line reads it before torch is imported."""

from typing import Literal

Isolation = Literal["required", "usual", "none"]
"""- "required": all walls stand around a kernel, or it does not run;
- "usual": those that the system allows;
- "none".
"""
