"""Discover policies: what a candidate may be, where it runs, how the search goes."""
