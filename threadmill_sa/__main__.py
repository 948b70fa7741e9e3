"""`python -m threadmill_sa` is the command `threadmill-sa`."""

from __future__ import annotations

from threadmill_sa.cli import main

if __name__ == "__main__":
    main()
