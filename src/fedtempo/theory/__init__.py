"""The theory of sections 2.4 to 4 and appendices A to C as functions: what takes part, what it bounds, what to choose.

Every public name is listed here and imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "Assumption": "seven_assumptions",
    "Bound": "bounds",
    "Ceiling": "ceiling",
    "Constants": "problem_constants",
    "Convergence": "theorems",
    "Coordinates": "recursion",
    "Covariance": "covariance",
    "DataTypes": "data_types",
    "Expected": "expected",
    "Forecast": "forecasting",
    "Measured": "virtual_models",
    "Order": "orders",
    "Quantities": "tables",
    "Regime": "regimes",
    "Residuals": "round_residuals",
    "StabilityLimit": "stability",
    "Stationary": "stability",
    "TypeWeights": "data_types",
    "assumptions": "seven_assumptions",
    "best_exponent": "theorems",
    "bound": "bounds",
    "constants": "problem_constants",
    "converges": "theorems",
    "expected_from_scheme": "expected",
    "expected_from_timeline": "expected",
    "forecast": "forecasting",
    "learning_rate_ceiling": "ceiling",
    "lemma_1": "covariance",
    "measure": "virtual_models",
    "optimum": "problem_constants",
    "order_of": "orders_in_time",
    "quantities": "tables",
    "rate": "stability",
    "regime": "regimes",
    "remaining_times": "rounds",
    "residuals": "round_residuals",
    "rounds_in": "expected",
    "slowest_exponent": "theorems",
    "stability_limit": "stability",
    "stationary_loss": "stability",
    "type_weights": "data_types",
    "window_share": "orders",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from fedtempo.theory.bounds import Bound as Bound
    from fedtempo.theory.bounds import bound as bound
    from fedtempo.theory.ceiling import Ceiling as Ceiling
    from fedtempo.theory.ceiling import learning_rate_ceiling as learning_rate_ceiling
    from fedtempo.theory.covariance import Covariance as Covariance
    from fedtempo.theory.covariance import lemma_1 as lemma_1
    from fedtempo.theory.data_types import DataTypes as DataTypes
    from fedtempo.theory.data_types import TypeWeights as TypeWeights
    from fedtempo.theory.data_types import type_weights as type_weights
    from fedtempo.theory.expected import Expected as Expected
    from fedtempo.theory.expected import expected_from_scheme as expected_from_scheme
    from fedtempo.theory.expected import expected_from_timeline as expected_from_timeline
    from fedtempo.theory.expected import rounds_in as rounds_in
    from fedtempo.theory.forecasting import Forecast as Forecast
    from fedtempo.theory.forecasting import forecast as forecast
    from fedtempo.theory.orders import Order as Order
    from fedtempo.theory.orders import window_share as window_share
    from fedtempo.theory.orders_in_time import order_of as order_of
    from fedtempo.theory.problem_constants import Constants as Constants
    from fedtempo.theory.problem_constants import constants as constants
    from fedtempo.theory.problem_constants import optimum as optimum
    from fedtempo.theory.recursion import Coordinates as Coordinates
    from fedtempo.theory.regimes import Regime as Regime
    from fedtempo.theory.regimes import regime as regime
    from fedtempo.theory.round_residuals import Residuals as Residuals
    from fedtempo.theory.round_residuals import residuals as residuals
    from fedtempo.theory.rounds import remaining_times as remaining_times
    from fedtempo.theory.seven_assumptions import Assumption as Assumption
    from fedtempo.theory.seven_assumptions import assumptions as assumptions
    from fedtempo.theory.stability import StabilityLimit as StabilityLimit
    from fedtempo.theory.stability import Stationary as Stationary
    from fedtempo.theory.stability import rate as rate
    from fedtempo.theory.stability import stability_limit as stability_limit
    from fedtempo.theory.stability import stationary_loss as stationary_loss
    from fedtempo.theory.tables import Quantities as Quantities
    from fedtempo.theory.tables import quantities as quantities
    from fedtempo.theory.theorems import Convergence as Convergence
    from fedtempo.theory.theorems import best_exponent as best_exponent
    from fedtempo.theory.theorems import converges as converges
    from fedtempo.theory.theorems import slowest_exponent as slowest_exponent
    from fedtempo.theory.virtual_models import Measured as Measured
    from fedtempo.theory.virtual_models import measure as measure


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"fedtempo.theory.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedtempo.theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
