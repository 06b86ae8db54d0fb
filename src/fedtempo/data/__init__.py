"""The data room: MNIST, CIFAR-10 and Shakespeare's roles, from their official releases or from a folder of yours.

Loaders read and check, `get` downloads; nothing is downloaded unless it is asked for.
"""

from fedtempo.data.catalogue import DATASETS, DataSet, File
from fedtempo.data.cifar10 import load_cifar10
from fedtempo.data.getting import Fetching, get
from fedtempo.data.images import Images
from fedtempo.data.mnist import load_mnist
from fedtempo.data.roles import Roles
from fedtempo.data.shakespeare import load_shakespeare

__all__ = [
    "DATASETS",
    "DataSet",
    "Fetching",
    "File",
    "Images",
    "Roles",
    "get",
    "load_cifar10",
    "load_mnist",
    "load_shakespeare",
]
