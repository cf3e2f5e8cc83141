"""`python -m ampcompare`: the command line without its script."""

from ampcompare.cli import main

if __name__ == "__main__":
    main()
