"""What must hold of a kernel over packed sequences: ops as data, layouts, the error budget and the properties."""

from packproof.properties.call import Call, KernelFault, MachineLimit, Refused, Result, Runner
from packproof.properties.case import Case
from packproof.properties.op import Op
from packproof.properties.promises import Promises

__all__ = ["Call", "Case", "KernelFault", "MachineLimit", "Op", "Promises", "Refused", "Result", "Runner"]
