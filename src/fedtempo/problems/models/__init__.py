"""Models as pairs of pure functions: logistic regression, convolutional networks, a recurrent one."""

from fedtempo.problems.models.classifiers import Classifier, logistic
from fedtempo.problems.models.convolutional import CNNS, cnn
from fedtempo.problems.models.recurrent import lstm

__all__ = ["CNNS", "Classifier", "cnn", "logistic", "lstm"]
