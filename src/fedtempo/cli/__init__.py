"""The command line: ``fedtempo plan``, ``timeline``, ``times``, ``run``, ``show``, ``watch``, ``theory``, …

Exit codes: 0 done, 2 input, 3 data missing, 4 results conflict, 130 interrupted. Results go to standard output,
everything else to standard error.
"""

import logging
import os
import sys
import traceback
import warnings

from fedtempo.errors import INTERRUPTED, FedtempoError, in_one_line, user_line

_FORMAT = warnings.formatwarning


def main() -> None:
    """Run the command line; what goes wrong becomes one line and an exit code."""
    warnings.formatwarning = _in_one_line
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - closed standard output: there is nobody to tell
    try:
        from fedtempo.cli.app import run

        code = run()
        sys.stdout.flush()
    except FedtempoError as error:
        code = _blame(str(error), error.__cause__, error.exit_code)
    except KeyboardInterrupt:
        code = _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader has gone, as in `fedtempo plan … | head`
        code = 0
        _silence()
    except Exception as error:
        where = user_line(error)
        if where is not None:  # a rule, loss or solver of the user's own, in the middle of the work
            code = _blame(f"{in_one_line(error)} ({where})", error, 2)
        elif isinstance(error, OSError):
            code = _say(f"cannot write the output ({error.strerror}); send it somewhere else", 2)
            _silence()
        else:
            raise
    sys.exit(code)


def _in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """An old flag or key for somebody at a terminal, to whom our lines of code say nothing; other warnings as usual."""
    if issubclass(category, FutureWarning):
        return f"fedtempo: {message}\n"
    return _FORMAT(message, category, filename, lineno, line)


def _blame(message: str, cause: BaseException | None, code: int) -> int:
    """Say what went wrong; where the user's own code did, with -v, the whole traceback."""
    if cause is not None and logging.getLogger().isEnabledFor(logging.INFO):
        traceback.print_exception(cause)
    elif cause is not None and user_line(cause) is not None:
        message += "; add -v for the traceback"
    return _say(message, code)


def _say(message: str, code: int) -> int:
    print(f"fedtempo: {message}", file=sys.stderr)  # noqa: T201
    return code


def _silence() -> None:
    """Let nothing more be written when the interpreter closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["main"]
