"""Networks: `features(x) -> (batch, D)`, and a linear `classifier`."""

from .adapted import adapt as adapt
from .adapted import own_network as own_network
from .adapted import trust as trust
from .base import Network as Network
from .densenet import densenet100 as densenet100
from .resnet import resnet10 as resnet10
from .resnet import resnet18 as resnet18
from .resnet import resnet18_224 as resnet18_224
from .small import audio_cnn as audio_cnn
from .small import cnn as cnn
from .small import mlp as mlp
from .wideresnet import wideresnet28 as wideresnet28

# By name, as runs are configured.
NETWORKS = {
    build.__name__: build
    for build in (resnet18, resnet18_224, resnet10, wideresnet28, densenet100, cnn, audio_cnn, mlp)
}
