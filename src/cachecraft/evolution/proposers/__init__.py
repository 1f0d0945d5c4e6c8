"""Proposers of programs, behind one protocol, and the grammar that `mutate` breeds with."""
