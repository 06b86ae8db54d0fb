"""Trained parameters: a pytree, its leaves named by where they lie, and a file of plain arrays for them.

A leaf's path is "layers/0/w"; the path of a tree that is one leaf is "". A problem's state is kept beside the
parameters, its leaves as "state:bn/mean". A model of a PyTorch module also knows the module's own names and what was
not trained, so that `state_dict` has all that the module's `load_state_dict` asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from fedtempo.display import Shown, frame_of, one_line
from fedtempo.errors import DataMissing, InputError
from fedtempo.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

KIND = "fedtempo model"
_STATE = "state:"
_FIXED = "fixed:"


def leaf_paths(tree: Any) -> list[str]:
    """Where each leaf of a pytree lies, as "layers/0/w", in the order of its leaves; "" is a tree that is one leaf."""
    import jax

    return ["/".join(_step(key) for key in path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _step(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return hide(str(getattr(key, name)))
    return hide(str(key))


def hide(name: str) -> str:
    """A name without slashes: they separate the steps of a path, and groups in a NetCDF file."""
    return name.replace("%", "%25").replace("/", "%2F")


def reveal(name: str) -> str:
    """The name that `hide` was given."""
    return name.replace("%2F", "/").replace("%25", "%")


def tree_of(leaves: Mapping[str, Any], structure: Any = None) -> Any:
    """The pytree that has these leaves by path, of a known structure, or of dictionaries in dictionaries."""
    if structure is None:
        return _nested(leaves)
    import jax

    paths = leaf_paths(jax.tree_util.tree_unflatten(structure, range(structure.num_leaves)))
    if set(paths) != set(leaves):
        raise InputError(f"the structure has leaves {sorted(paths)}, and the history {sorted(leaves)}")
    return jax.tree_util.tree_unflatten(structure, [leaves[path] for path in paths])


def _nested(leaves: Mapping[str, Any]) -> Any:
    if set(leaves) == {""}:
        return leaves[""]
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *steps, last = map(reveal, path.split("/"))
        place = tree
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = leaf
    return tree


class Leaf(NamedTuple):
    """An array of a model, without its numbers."""

    name: str
    kind: str
    """parameter, state, or fixed: not trained."""
    shape: tuple[int, ...]
    dtype: str
    size: int
    nbytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Model(Shown):
    """The parameters that one run ended with, which run it was, and the problem's state.

    ``print(model)`` lists its arrays, without their numbers.

    Example:
        >>> problem, times = ft.problems.digits(4), ft.FixedTimes([4, 2, 1, 1])
        >>> model = ft.simulate(problem, ft.FedFix(1), times, until=4, points=2).model()
        >>> print(model)
        FedFix(1), time-based weights, local_steps 1, batch_size 32, local_lr 0.1, server_lr 1, seed 0: 650
        parameters, 2600 bytes
        <BLANKLINE>
        Arrays
        name     kind       shape  dtype    numbers
        bias     parameter  10     float32       10
        weights  parameter  10×64  float32      640
        >>> model.save("model.npz")
        >>> ft.Model.load("model.npz").params["bias"].shape
        (10,)
    """

    parameters: Any
    where: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    """None where the problem has none."""
    module: Mapping[str, Any] | None = None
    """Of a PyTorch module: `names` of its state dict, in their order, each with the name that it is kept under (tied
    weights share one), and `fixed` arrays, which were not trained."""

    @property
    def params(self) -> Any:
        """The parameters, as a loss calls them."""
        return self.parameters

    @property
    def run(self) -> str:
        """Which run it is of, in words; empty where that is not known."""
        words = {"scheme": "{}", "weights": "{} weights"}
        order = sorted(self.where, key=lambda name: (name not in words, name == "seed"))
        return ", ".join(words.get(name, f"{name} {{}}").format(_plain(self.where[name])) for name in order)

    @property
    def num_parameters(self) -> int:
        """How many numbers were trained."""
        return sum(leaf.size for leaf in self.leaves() if leaf.kind == "parameter")

    def leaves(self) -> list[Leaf]:
        """Its arrays: parameters, the problem's state, and what was not trained."""
        import jax

        found = []
        fixed = {} if self.module is None else self.module["fixed"]
        for kind, tree in (("parameter", self.parameters), ("state", self.state), ("fixed", fixed)):
            for path, leaf in zip(leaf_paths(tree), jax.tree_util.tree_leaves(tree), strict=True):
                array = np.asarray(leaf)
                found.append(Leaf(reveal(path), kind, array.shape, str(array.dtype), array.size, array.nbytes))
        return found

    def table(self) -> pd.DataFrame:
        """A row an array: `name`, `kind`, `shape`, `dtype`, `size` (how many numbers) and `bytes`."""
        return frame_of(self)

    def __repr__(self) -> str:
        arrays = sum(leaf.kind == "parameter" for leaf in self.leaves())
        size = f"{self.num_parameters} parameters in {arrays} array{'s' * (arrays != 1)}"
        return one_line("Model", ", ".join(filter(None, (size, self.run))))

    def save(self, path: str | Path) -> None:
        """Write an .npz file of the leaves by their paths, or a .safetensors file; nothing is pickled.

        A model of a PyTorch module is written to .safetensors by the names of its state dict.
        """
        import zipfile

        import jax

        path = Path(path)
        if path.suffix == ".safetensors":
            self._save_tensors(path)
            return
        if path.suffix != ".npz":
            raise InputError(
                f"{path}: models are written as .npz or .safetensors; name the file {path.with_suffix('.npz').name}"
            )
        leaves = dict(zip(leaf_paths(self.parameters), jax.tree_util.tree_leaves(self.parameters), strict=True))
        state = [_STATE + path for path in leaf_paths(self.state)]
        leaves |= dict(zip(state, jax.tree_util.tree_leaves(self.state), strict=True))
        note: dict[str, Any] = {"kind": KIND, "where": dict(self.where), **({"state": state} if state else {})}
        if self.module is not None:
            note["module"] = {"names": self.module["names"], "fixed": list(self.module["fixed"])}
            leaves |= {_FIXED + name: array for name, array in self.module["fixed"].items()}
        for name, leaf in leaves.items():
            if np.asarray(leaf).dtype.kind not in "biufc":
                raise InputError(
                    f"{path}: the leaf {name!r} is not an array of plain numbers; convert it before saving"
                )

        def write(file: BinaryIO) -> None:
            # savez would refuse a leaf with the name of one of its own arguments
            with zipfile.ZipFile(file, "w") as archive:
                archive.comment = json.dumps(note).encode()
                for name, leaf in leaves.items():
                    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(leaf), allow_pickle=False)

        write_whole(path, write)

    def arrays(self) -> dict[str, Any]:
        """All arrays of a PyTorch module's state dict, by its names; of other models the leaves, by their paths."""
        import jax

        def leaves(tree: Any) -> dict[str, Any]:
            return dict(zip(leaf_paths(tree), jax.tree_util.tree_leaves(tree), strict=True))

        if self.module is None:
            found = leaves(self.parameters)
            return found | ({} if self.state is None else {_STATE + n: x for n, x in leaves(self.state).items()})
        held = {**self.module["fixed"], **dict(self.parameters), **dict(self.state or {})}
        return {name: np.asarray(held[kept]) for name, kept in self.module["names"].items()}

    def state_dict(self) -> dict[str, Any]:
        """Tensors by name, for `load_state_dict` of the PyTorch module that was trained."""
        if self.module is None:
            raise InputError(
                "state_dict: this model is not a PyTorch module's; its arrays are in .parameters, a pytree"
            )
        import torch

        return {name: torch.from_numpy(np.array(array)) for name, array in self.arrays().items()}

    def _save_tensors(self, path: Path) -> None:
        try:
            from safetensors.numpy import save
        except ImportError:
            raise DataMissing(
                f"{path}: safetensors is not installed; install it with pip install 'fedtempo[torch]', or write .npz"
            ) from None
        data = save({name: np.asarray(array, order="C") for name, array in self.arrays().items()}, self._metadata())
        write_whole(path, lambda file: file.write(data))

    def _metadata(self) -> dict[str, str]:
        return {"kind": KIND, "where": json.dumps(dict(self.where))}

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read an .npz file that `save` wrote; lists and tuples come back as dictionaries by position."""
        import zipfile

        path = Path(path)
        must_exist(path, "the path of a saved model")
        try:
            with zipfile.ZipFile(path) as archive:
                note = json.loads(archive.comment or b"{}")
            with np.load(path, allow_pickle=False) as stored:
                leaves = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: not a model that fedtempo saved ({error}); give an .npz file") from None
        if not leaves:
            raise InputError(f"{path}: no arrays in it; give an .npz file that Model.save wrote")
        state = {name.removeprefix(_STATE): leaves.pop(name) for name in note.get("state", ()) if name in leaves}
        module = note.get("module")
        if module is not None:
            fixed = {name: leaves.pop(_FIXED + name) for name in module["fixed"]}
            module = {"names": module["names"], "fixed": fixed}
        return cls(tree_of(leaves), note.get("where", {}), tree_of(state) if state else None, module)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def must_exist(path: Path, what: str) -> None:
    """Complain about a path at which no file is."""
    if not path.exists():
        raise DataMissing(f"{path}: no such file; give {what}")
    if path.is_dir():
        raise InputError(f"{path}: a folder; give {what}")
