"""Data sets: those of the benchmarks, the user's, and an embedded default of real data.

`load_benchmark` and `make_benchmark` give a `Benchmark`, `read` and `as_set` a data set, `Loader` batches.
"""

from .arrays import read_arrays as read_arrays
from .audio import AudioTransform as AudioTransform
from .audio import log_mel as log_mel
from .benchmark import Benchmark as Benchmark
from .benchmarks import load_benchmark as load_benchmark
from .download import SOURCES as SOURCES
from .download import download as download
from .download import verify as verify
from .errors import DataError as DataError
from .files import read_cifar as read_cifar
from .files import read_cifar10c as read_cifar10c
from .files import read_idx as read_idx
from .files import read_mnist as read_mnist
from .files import read_svhn as read_svhn
from .folders import read_folder as read_folder
from .folders import read_imglist as read_imglist
from .folders import read_places365 as read_places365
from .folders import read_texture as read_texture
from .folders import read_tin as read_tin
from .images import ImageTransform as ImageTransform
from .inputs import Inputs as Inputs
from .listing import Listing as Listing
from .listing import Sample as Sample
from .loader import Loader as Loader
from .noise import noise as noise
from .openood import BENCHMARKS as BENCHMARKS
from .prepared import prepare as prepare
from .prepared import readable as readable
from .proxies import proxies as proxies
from .reading import as_set as as_set
from .reading import read as read
from .sets import DataSet as DataSet
from .sets import FileSet as FileSet
from .sets import ItemSet as ItemSet
from .sets import TensorSet as TensorSet
from .sets import as_ood as as_ood
from .sets import histogram as histogram
from .sets import take as take
from .user_data import make_benchmark as make_benchmark
from .user_data import read_benchmark as read_benchmark
