"""The program `ampcompare`, also as `python -m ampcompare`."""

from ampcompare.cli import main

if __name__ == "__main__":
    main()
