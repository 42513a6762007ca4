"""Forwards: `python -m packproof.proof.speed` is what runs."""

from runpy import run_module

run_module("packproof.proof.speed", run_name="__main__")
