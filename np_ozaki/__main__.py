"""``python -m np_ozaki``: the command line."""

import sys

from np_ozaki.cli import main

if __name__ == "__main__":
    sys.exit(main())
