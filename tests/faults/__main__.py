"""``python -m tests.faults``: see :mod:`tests.faults.soak`."""

from tests.faults.soak import main

if __name__ == "__main__":
    main()
