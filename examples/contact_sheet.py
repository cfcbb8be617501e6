"""What is in a benchmark, as one picture: a row of samples from each set.

python examples/contact_sheet.py digits sheet.png
python examples/contact_sheet.py cifar10 sheet.png --root ~/data
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from spcp import data

COLUMNS, LABEL = 24, 150  # samples in a row, pixels for the name of the set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", help="name or TOML file")
    parser.add_argument("picture")
    parser.add_argument("--root", help="folder that holds the data")
    arguments = parser.parse_args()
    benchmark = data.load_benchmark(arguments.benchmark, arguments.root)
    rows = [row(role, samples, benchmark.transform_of(role)) for role, samples in benchmark.sets().items()]
    Image.fromarray(np.concatenate(rows)).save(arguments.picture)


def row(role: str, samples: data.DataSet, transform: data.ImageTransform | data.AudioTransform | None) -> np.ndarray:
    """Show samples from all over the set, beside its name: bytes (height, width, 3)."""
    assert isinstance(transform, data.ImageTransform), "only images can be shown"
    index = np.linspace(0, len(samples) - 1, COLUMNS).round().astype(int).tolist()
    x = data.prepare(data.take(samples, index), transform, cache=False).x  # (COLUMNS, C, side, side)
    x = x.expand(-1, 3, -1, -1)
    side = x.shape[2]
    name = Image.new("RGB", (LABEL, side + 4), "white")
    ImageDraw.Draw(name).text((4, side // 2), role, fill="black", font=ImageFont.load_default(13), anchor="lm")
    tiles = np.pad(x.permute(0, 2, 3, 1).numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    return np.concatenate([np.asarray(name), *tiles], axis=1)


if __name__ == "__main__":
    main()
