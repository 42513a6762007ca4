"""The old path of `python -m packproof.proof.compiled`."""

from runpy import run_module

run_module("packproof.proof.compiled", run_name="__main__")
