"""Discovering policies: what candidates may edit, who proposes them, and the population that remembers them."""
