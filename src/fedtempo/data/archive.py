"""Members of a packed tar archive, read without unpacking it to disk.

Every member must be an expected one, and a plain file (or a folder). Names that leave the folder, links and devices
mark an archive that is not the official one; it is refused whole.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from fedtempo.data.damage import Damage
from fedtempo.data.packed import read_up_to, unpacked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def members(
    path: Path, wanted: Collection[str], ignored: Collection[str], *, limit: int, total: int
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the `wanted` members, in the archive's order; each once, and none is lacking.

    A member has at most `limit` bytes, the unpacked archive at most `total`.
    """
    left = set(wanted)
    with unpacked(path) as packed, io.BufferedReader(_Bounded(packed, total)) as file:
        with tarfile.open(fileobj=file, mode="r|") as tar:
            for member in tar:
                name = _checked(member, {*wanted, *ignored})
                if name not in wanted:
                    continue
                if name not in left:
                    raise Damage(f"it holds {name} twice")
                left.remove(name)
                content = tar.extractfile(member)
                assert content is not None, "a plain file has content"
                yield name, read_up_to(content, limit)  # type: ignore[arg-type]
        while file.read(2**20):  # up to the packed file's checksum
            pass
    if left:
        raise Damage(f"it lacks {', '.join(sorted(left))}")


def _checked(member: tarfile.TarInfo, known: Collection[str]) -> str:
    """The member's name, if it may be in the archive."""
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts:
        raise Damage(f"its member {member.name!r} points outside the archive, so it is not the official one")
    if not (member.isdir() or (member.isreg() and not member.issparse())):
        raise Damage(f"its member {member.name!r} is not a plain file, so it is not the official one")
    if str(place) not in known:
        raise Damage(f"its member {member.name!r} does not belong there, so it is not the official one")
    return str(place)


class _Bounded(io.RawIOBase):
    """A stream that ends in an error when it goes on for too long."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._limit, self._left = file, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        data = self._file.read(len(memoryview(buffer)))
        self._left -= len(data)
        if self._left < 0:
            raise Damage(f"it unpacks to more than {self._limit / 2**20:,.0f} MiB, far more than this data set has")
        memoryview(buffer)[: len(data)] = data
        return len(data)
