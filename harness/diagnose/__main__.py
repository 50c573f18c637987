"""`python -m harness.diagnose`."""

import sys

from harness.diagnose.cli import main

sys.exit(main())
