"""`python -m spcp`, and `torchrun -m spcp`."""

from .cli import main

main()
