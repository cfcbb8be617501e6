"""Builds the C kernels of the head. They are optional: without a compiler the package installs without them."""

import sys

from setuptools import Extension, setup

FLAGS = [
    "-O3",
    "-falign-loops=32",  # where the tight loops fall by chance, they take up to twice as long
    "-ffp-contract=off",  # see kernels.c
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"),  # to vectorise sums
]
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []  # Apple's compiler has none: one thread there

setup(
    ext_modules=[
        Extension(
            "spcp.contributions._kernels",  # a plain library, loaded with ctypes
            ["src/spcp/contributions/kernels.c"],
            extra_compile_args=FLAGS + OPENMP,
            extra_link_args=OPENMP,
            libraries=["m"],
            optional=True,
        )
    ]
)
