"""spcp: out-of-distribution detection by shaping parameter contribution patterns."""

__version__ = "0.1.0.dev0"  # first: a part of the keys of banks

from . import data as data
from .calibration import Detection as Detection
from .calibration import Detector as Detector
from .contributions import Explanation as Explanation
from .contributions import Pattern as Pattern
from .contributions import Sparsity as Sparsity
from .contributions import SPCPLinear as SPCPLinear
from .contributions import apply_spcp as apply_spcp
from .contributions import clip_contributions as clip_contributions
from .contributions import contribution_pattern as contribution_pattern
from .contributions import contribution_quantile as contribution_quantile
from .contributions import explain as explain
from .contributions import find_classifier as find_classifier
from .contributions import fit_threshold as fit_threshold
from .contributions import remove_spcp as remove_spcp
from .contributions import sparsity as sparsity
from .evaluation import evaluate as evaluate
