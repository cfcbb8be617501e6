"""Training: the one loop for all methods. `spcp.config` has the settings, `spcp.runs` what a run leaves."""

from ..errors import TrainingError as TrainingError
from .loop import lr_at as lr_at
from .loop import train as train
from .loop import warn_of_guessing as warn_of_guessing
