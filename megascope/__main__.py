"""``python -m megascope``."""

from .cli import main

raise SystemExit(main())
