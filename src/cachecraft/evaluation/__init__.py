"""Measuring policies: traces, answers, the grid of cells, statistics and the store of results."""
