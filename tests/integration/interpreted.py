"""`python interpreted.py BLOCK DTYPE`: by what a block of packproof's kernels, interpreted, exceeds its budget."""

import sys

import torch

from packproof import kernels
from packproof.harness.interpreter import repair
from tests.integration.small import LENGTHS, WIDTH, small
from tests.integration.training import Task, excess

if __name__ == "__main__":
    repair.install()
    block, dtype = sys.argv[1], getattr(torch, sys.argv[2])
    print(excess(small(block, kernels), Task.of(LENGTHS, WIDTH, dtype)))
