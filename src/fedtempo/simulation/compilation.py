"""Nothing is compiled twice: programs are kept in this process by their own text, and on disk by JAX's cache.

A program's text (StableHLO, constants included) says all that it computes, so that a loss that reads something which
has changed makes another program. Writing the text takes about a tenth of the time that compiling it does. What is kept
holds on to no function and no rows of a problem.
"""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fedtempo.cache import cache_folder
from fedtempo.errors import FedtempoError
from fedtempo.files import make_folder

MAX_PROGRAMS = 64
"""In memory; those that were not used for longest go."""
WORTH_SECONDS = 0.2
"""What is compiled faster is not written to disk."""

_FOLDER, _SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"


def keep_on_disk() -> None:
    """Let JAX keep compiled programs in fedtempo's cache folder, where nobody has told it anything else.

    JAX writes an entry in place. Who reads it meanwhile, or after a kill in the middle, finds it cut short, compiles
    instead and warns: nothing is lost and nothing can be done, so the warning is not passed on.
    """
    import jax

    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
    settings: dict[str, Any] = jax.config.values
    folder = cache_folder()
    if folder is None or settings.get(_FOLDER) is not None or not settings.get("jax_enable_compilation_cache", True):
        return
    folder = folder / "jax"
    try:
        make_folder(folder)
    except (OSError, FedtempoError):
        return
    if not os.access(folder, os.W_OK):
        return
    update: Any = jax.config.update
    update(_FOLDER, str(folder))
    if _SECONDS.upper() not in os.environ and settings.get(_SECONDS) == 1.0:  # JAX's own default
        update(_SECONDS, WORTH_SECONDS)


class Programs:
    """Compiled programs by what they compute."""

    def __init__(self, most: int = MAX_PROGRAMS) -> None:
        self._most = most
        self._held: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def compiled(self, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> Any:
        """The compiled `function` for arguments of these shapes; `donate` numbers those that may be used up."""
        import jax

        lowered = jax.jit(function, donate_argnums=donate).lower(*args)
        text = lowered.as_text()
        if "callback" in text or _leaves_constants_out(text):  # calls Python or reads arrays that are not in the text
            return lowered.compile()
        key = _key(text, lowered, args)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = lowered.compile()
        with self._lock:
            self._held[key] = made
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._held.clear()


PROGRAMS = Programs()
"""Of all studies of this process."""


def _leaves_constants_out(text: str) -> bool:
    """Whether arrays that a function holds are handed to the program when it runs, in place of lying in its text."""
    import jax

    settings: dict[str, Any] = jax.config.values
    return bool(settings.get("jax_use_simplified_jaxpr_constants")) or "jax.const" in text


def _key(text: str, lowered: Any, args: tuple[Any, ...]) -> bytes:
    """Of the text, of what goes in, where it lies and what comes out, and of JAX's settings."""
    import jax

    config: Any = jax.config
    settings = sorted((name, repr(value)) for name, value in config.values.items())
    device = (jax.default_backend(), repr(config.jax_default_device), os.environ.get("XLA_FLAGS"))
    places = [_place(part) for part in jax.tree_util.tree_leaves(args)]
    about = f"{lowered.args_info}\0{lowered.in_tree}\0{lowered.out_info}\0{lowered.out_tree}\0"
    about += f"{device}\0{places}\0{settings}\0"
    return hashlib.blake2b(about.encode() + text.encode(), digest_size=32).digest()


def _place(part: Any) -> str:
    """The devices that an argument lies on, and how it is spread over them; of what is not on any yet, nothing."""
    sharding = getattr(part, "sharding", None)
    if sharding is None:
        return ""
    devices = sorted((device.platform, device.id) for device in sharding.device_set)
    return f"{sharding!r} {devices} {getattr(part, 'committed', None)}"
