"""The paper's method: contributions, their quantile, their truncation, and the head. It depends on torch alone."""

from .clip import as_operator as as_operator
from .clip import class_parts as class_parts
from .clip import clip_contributions as clip_contributions
from .head import SPCPLinear as SPCPLinear
from .head import effective_threshold as effective_threshold
from .head import plain_head as plain_head
from .patterns import Explanation as Explanation
from .patterns import Pattern as Pattern
from .patterns import Sparsity as Sparsity
from .patterns import contribution_pattern as contribution_pattern
from .patterns import evaluating as evaluating
from .patterns import explain as explain
from .patterns import explanations_of as explanations_of
from .patterns import fit_threshold as fit_threshold
from .patterns import pattern_of as pattern_of
from .patterns import positive_share as positive_share
from .patterns import sparsity as sparsity
from .quantile import RhoNorm as RhoNorm
from .quantile import contribution_quantile as contribution_quantile
from .quantile import mean_support as mean_support
from .quantile import threshold_estimate as threshold_estimate
from .surgery import apply_spcp as apply_spcp
from .surgery import find_classifier as find_classifier
from .surgery import remove_spcp as remove_spcp
from .truncation import Stages as Stages
from .truncation import Truncation as Truncation
