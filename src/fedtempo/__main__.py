"""``python -m fedtempo``."""

from fedtempo.cli import main

main()
