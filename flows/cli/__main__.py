"""`python -m flows.cli` is `siloflow`."""

from flows.cli import main

if __name__ == "__main__":
    main()
