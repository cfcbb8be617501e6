"""Builds the C kernels. They are optional: without a compiler the package installs without them."""

import sys

from setuptools import Extension, setup

FLAGS = [
    "-O3",
    "-falign-loops=32",  # where the tight loops fall by chance, they take up to twice as long
    "-ffp-contract=off",  # see kernels.c
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"),  # to vectorise sums
]
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []  # Apple's compiler has none: one thread there

KERNELS = {
    "spcp.contributions._kernels": "src/spcp/contributions/kernels.c",
    "spcp.data._pixels": "src/spcp/data/pixels.c",
}

setup(
    ext_modules=[
        Extension(
            name,  # a plain library, loaded with ctypes
            [source],
            extra_compile_args=FLAGS + OPENMP,
            extra_link_args=OPENMP,
            libraries=["m"],
            optional=True,
        )
        for name, source in KERNELS.items()
    ]
)
