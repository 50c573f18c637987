"""`python -m energymon.sender`."""

import sys

from energymon.sender.sender import main

sys.exit(main())
