"""A trained model without its weights: which run it is of, and its arrays by name."""

from __future__ import annotations

from fedtempo.report.page import Page, page, table, words
from fedtempo.report.text import counted
from fedtempo.simulation.history.model import Model


def model_page(model: Model) -> Page:
    """The run, how large the model is, and a row an array."""
    total = sum(leaf.nbytes for leaf in model.leaves())
    rows = (
        (leaf.name, leaf.kind, "×".join(map(str, leaf.shape)) or "one number", leaf.dtype, str(leaf.size))
        for leaf in model.leaves()
    )
    return page(
        f"{model.run or 'A model'}: {counted(model.num_parameters, 'parameter')}, {total} bytes",
        table("Arrays", (words("name"), words("kind"), words("shape"), words("dtype"), "numbers"), rows),
    )
