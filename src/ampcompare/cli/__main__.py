"""The program `ampcompare`, as `python -m ampcompare.cli`."""

from ampcompare.cli import main

if __name__ == "__main__":
    main()
