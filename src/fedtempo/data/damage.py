"""A file that is not what its name says: found by whoever reads it, told with the file's name and the cure."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path

from fedtempo.data.places import Folder, command
from fedtempo.errors import InputError


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
