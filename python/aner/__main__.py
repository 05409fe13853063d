"""``python -m aner`` is the ``aner`` command."""

from aner.cli import main

main()
