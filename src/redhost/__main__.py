"""`redhost` and `python -m redhost`: Ctrl-C while the command line is imported, one line."""

import sys


def main() -> None:
    """Run the command line; see `redhost.cli.main`."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("redhost: stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
