"""`python -m tvmopt`: the command line, for an environment whose `bin` is not on the path."""

import sys

from tvmopt.cli import main

sys.exit(main())
