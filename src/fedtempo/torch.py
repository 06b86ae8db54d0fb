"""PyTorch modules, losses and data sets as they are: `ft.torch.problem`, and its optimizers as clients' work."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    from fedtempo.errors import DataMissing

    raise DataMissing(
        "fedtempo.torch needs PyTorch, which is not installed; install it with: pip install 'fedtempo[torch]'"
    ) from _error

from fedtempo.problems.torch.problem import TorchProblem, problem
from fedtempo.training.torch_solvers import LocalTorch

__all__ = ["LocalTorch", "TorchProblem", "problem"]
