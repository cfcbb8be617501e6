"""Write a detector as one file that runs without this library, see `spcp.exported`; in int8, too."""

from __future__ import annotations

from .file import export as export
from .file import prepared as prepared
from .int8 import Int8 as Int8
from .int8 import calibrate_file as calibrate_file
from .int8 import quantise as quantise
