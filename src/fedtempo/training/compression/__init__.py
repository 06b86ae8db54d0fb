"""Compression of contributions: in simulation (JAX) and on the wire (NumPy alone), to the same bits.

ft.QSGD(levels=4)      unbiased stochastic levels
ft.TopK(share=0.01)    the largest entries, the rest is remembered
ft.LowRank(rank=2)     PowerSGD: matrices as products of two thin ones, the rest is remembered
"""

from fedtempo.training.compression.low_rank import LowRank
from fedtempo.training.compression.method import Compression
from fedtempo.training.compression.named import COMPRESSIONS, compression_of
from fedtempo.training.compression.qsgd import QSGD
from fedtempo.training.compression.top_k import TopK

__all__ = ["COMPRESSIONS", "QSGD", "Compression", "LowRank", "TopK", "compression_of"]
