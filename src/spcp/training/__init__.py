"""Training: the settings of a run, the one loop for all methods, and the folder that a run leaves."""

from ..errors import TrainingError as TrainingError
from .loop import train as train
from .run import adopt as adopt
from .run import benchmark_of as benchmark_of
from .run import load_network as load_network
from .run import read_config as read_config
from .run import read_environment as read_environment
from .run import read_inputs as read_inputs
from .run import read_metrics as read_metrics
from .settings import Config as Config
from .settings import build_network as build_network
from .settings import config_for as config_for
from .settings import lr_at as lr_at
