"""`python -m jaxtribute.cli` is `jaxtribute`."""

from . import main

if __name__ == "__main__":
    main(prog_name="jaxtribute")
