"""Forwards: `python -m packproof.proof.compiled` is what runs."""

from runpy import run_module

run_module("packproof.proof.compiled", run_name="__main__")
