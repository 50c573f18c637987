"""`python -m harness.cell`: one cell, as the harness starts it on a node."""

import sys

from harness.cell.main import main

sys.exit(main(sys.argv[1:]))
