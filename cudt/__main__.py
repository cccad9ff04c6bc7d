"""`python -m cudt` is `cudt`."""

from cudt.cli import main

if __name__ == "__main__":
    main()
