"""The old path of `python -m packproof.proof.speed`."""

from runpy import run_module

run_module("packproof.proof.speed", run_name="__main__")
