"""Discover policies: what a candidate may be and edit, who proposes, how candidates are judged, how the search goes."""
