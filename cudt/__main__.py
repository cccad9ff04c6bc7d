"""`python -m cudt` is `cudt`."""

from cudt.cli.main import main

if __name__ == "__main__":
    main()
