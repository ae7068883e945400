"""``python -m pyterrier_graph demo``."""

import sys


def main() -> None:
    """Runs the command that is named first."""
    if sys.argv[1:2] != ["demo"]:
        raise SystemExit("usage: python -m pyterrier_graph demo [options]; see demo --help")
    from pyterrier_graph import demo

    demo.main(sys.argv[2:])


if __name__ == "__main__":
    main()
