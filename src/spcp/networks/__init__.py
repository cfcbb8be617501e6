"""Networks by timm's protocol: `forward_features(x) -> (batch, D)`, and a linear `classifier`."""

from .adapted import adapt as adapt
from .base import Network as Network
from .by_name import is_code as is_code
from .by_name import load_model as load_model
from .by_name import tried as tried
from .densenet import densenet100 as densenet100
from .pretrained import Weights as Weights
from .pretrained import architecture_of as architecture_of
from .pretrained import build_pretrained as build_pretrained
from .pretrained import from_pretrained as from_pretrained
from .pretrained import is_pretrained as is_pretrained
from .pretrained import preprocessing_of as preprocessing_of
from .resnet import resnet10 as resnet10
from .resnet import resnet18 as resnet18
from .resnet import resnet18_224 as resnet18_224
from .small import audio_cnn as audio_cnn
from .small import cnn as cnn
from .small import mlp as mlp
from .weights import put_weights as put_weights
from .whitened import whitened_cnn as whitened_cnn
from .wideresnet import wideresnet28 as wideresnet28

NETWORKS = {  # by name, as runs are configured
    build.__name__: build
    for build in (resnet18, resnet18_224, resnet10, wideresnet28, densenet100, whitened_cnn, cnn, audio_cnn, mlp)
}
