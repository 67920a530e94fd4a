"""``python -m aureole``."""

from aureole.cli import main

main()
