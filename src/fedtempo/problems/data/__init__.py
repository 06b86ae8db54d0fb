"""The data room: MNIST, CIFAR-10 and Shakespeare's roles, from their official releases or from a folder of yours.

Loaders read and check, `get` downloads; nothing is downloaded unless it is asked for.
"""

from fedtempo.problems.data.catalogue import DATASETS, DataSet, Fetching, File, get
from fedtempo.problems.data.images import Images, load_cifar10, load_mnist
from fedtempo.problems.data.shakespeare import Roles, load_shakespeare

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
