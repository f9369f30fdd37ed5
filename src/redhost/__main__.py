"""`python -m redhost` is the command `redhost`."""

from .cli import main

if __name__ == "__main__":
    main()
