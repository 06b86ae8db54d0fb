"""Shakespeare's roles, one client each: TensorFlow Federated's release, or LEAF's roles; both cleaned as LEAF does."""

from __future__ import annotations

from fedtempo.data.damage import reading
from fedtempo.data.packed import read
from fedtempo.data.places import Folder, needed
from fedtempo.data.roles import Roles

LIMIT = 128 * 2**20


def load_shakespeare(data_dir: Folder = None) -> Roles:
    """The roles and their texts, from `shakespeare/` below the data folder.

    There it takes TensorFlow Federated's database, shakespeare.sqlite.lzma or shakespeare.sqlite (roles sorted by name,
    each role's training snippets, then its test snippets, joined by a space), or LEAF's roles, leaf_all_users_raw.json
    or all_data.json, .gz or unpacked (roles in the file's order).
    """
    from fedtempo.data.leaf import leaf_roles
    from fedtempo.data.tff import tff_roles

    [path] = needed("shakespeare", data_dir)
    with reading(path, "shakespeare", data_dir):
        data = read(path, LIMIT)
        return tff_roles(data) if ".sqlite" in path.name else leaf_roles(data)
