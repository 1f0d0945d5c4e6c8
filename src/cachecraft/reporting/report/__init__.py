"""The HTML report of a run: one self-contained page that needs no server, no network and no file beside it."""
