"""`python -m cachecraft` is the `cachecraft` command."""

from cachecraft.cli import main

main()
