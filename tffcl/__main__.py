"""`python -m tffcl` is `tffcl`."""

import sys

from tffcl.cli import main

sys.exit(main())
