"""Builds the C kernels. They are optional: without a compiler the package installs without them."""

import platform
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

# A library for each instruction set, named as torch names it; `spcp.compiled` loads the one that the processor can run,
# so a wheel built on one machine runs on every other.
AVX2 = ["-mavx2", "-mfma"]
INSTRUCTION_SETS: dict[str, list[str]] = {"default": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS["avx2"] = AVX2
    INSTRUCTION_SETS["avx512"] = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]

setup(
    ext_modules=[
        Extension(
            f"{name}_{instruction_set}",  # a plain library, loaded with ctypes
            [source],
            extra_compile_args=FLAGS + OPENMP + options,
            extra_link_args=OPENMP,
            libraries=["m"],
            optional=True,
        )
        for name, source in KERNELS.items()
        for instruction_set, options in INSTRUCTION_SETS.items()
    ]
)
