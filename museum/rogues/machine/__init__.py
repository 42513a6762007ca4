"""Rogues with correct answers, changing files, processes and services around them.

Each begins with `require_throwaway_root`; `packproof museum rogues` runs them in no other place.
"""
