"""The command line: ``fedtempo plan``, ``timeline``, ``times``, ``run``, ``show``, ``watch``, ``theory``, …

Exit codes: 0 done, 2 input, 3 data missing, 4 results conflict, 130 interrupted. Results go to standard output,
everything else to standard error.
"""

import os
import sys

from fedtempo.errors import INTERRUPTED, FedtempoError


def main() -> None:
    """Run the command line; what goes wrong becomes one line and an exit code."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - closed standard output: there is nobody to tell
    try:
        from fedtempo.cli.app import run

        code = run()
        sys.stdout.flush()
    except FedtempoError as error:
        code = _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader has gone, as in `fedtempo plan … | head`
        code = 0
        _silence()
    except OSError as error:
        code = _say(f"cannot write the output ({error.strerror}); send it somewhere else", 2)
        _silence()
    sys.exit(code)


def _say(message: str, code: int) -> int:
    print(f"fedtempo: {message}", file=sys.stderr)  # noqa: T201
    return code


def _silence() -> None:
    """Let nothing more be written when the interpreter closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["main"]
