"""`python -m spcp.cli`."""

from . import main

main()
