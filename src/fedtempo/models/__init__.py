"""Models as pairs of pure functions: logistic regression, convolutional networks, a recurrent one."""

from fedtempo.models.classifier import Classifier
from fedtempo.models.convolutional import CNNS, cnn
from fedtempo.models.recurrent import lstm
from fedtempo.models.regression import logistic

__all__ = ["CNNS", "Classifier", "cnn", "logistic", "lstm"]
