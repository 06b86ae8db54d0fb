"""Reading a file whole, plain or packed (.gz, .xz, .lzma), or the members of a packed tar archive, up to a limit.

A small file must not fill the memory, and nothing is unpacked to disk. Every member of an archive must be an expected
one, and a plain file (or a folder): names that leave the folder, links and devices mark an archive that is not the
official one, and it is refused whole. A file that is not what its name says is told with its name and the cure.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from fedtempo.errors import InputError
from fedtempo.problems.data.catalogue import Folder, command

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Damage(Exception):
    """What is wrong with the file being read; `reading` adds its name and the cure."""


@contextmanager
def reading(path: Path, name: str, data_dir: Folder) -> Iterator[None]:
    """Whatever is wrong with `path`, of data set `name`, becomes one message."""
    try:
        yield
    except Damage as damage:
        why = str(damage)
    except EOFError:
        why = "it is cut short"
    except (zlib.error, lzma.LZMAError, BadGzipFile, tarfile.TarError) as error:
        why = f"it is damaged ({error})"
    except MemoryError:
        why = "unpacking it takes more memory than there is"
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); make it readable, or give another --data-dir "
            "(Python: data_dir=…)"
        ) from None
    else:
        return
    raise InputError(
        f"{path}: {why}; remove it and run `{command(name, data_dir)}`, or give another --data-dir (Python: data_dir=…)"
    )


_CHUNK = 2**20


def read(path: Path, limit: int) -> bytes:
    """The unpacked content of a file, which has at most `limit` bytes."""
    with unpacked(path) as file:
        return read_up_to(file, limit)


def unpacked(path: Path) -> BinaryIO:
    """The file, open for reading, unpacked as its ending says."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return cast(BinaryIO, lzma.open(path)) if path.suffix in (".xz", ".lzma") else path.open("rb")


def read_up_to(file: BinaryIO, limit: int) -> bytes:
    """All that is left in `file`."""
    chunks, size = [], 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        if size > limit:
            raise Damage(f"it holds more than {limit / 2**20:,.0f} MiB, far more than this data set has")
        chunks.append(chunk)
    return b"".join(chunks)


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
