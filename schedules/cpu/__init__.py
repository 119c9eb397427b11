"""Families for CPUs: every tile is computed from the machine's fields, in the docstring and as a doctest."""
