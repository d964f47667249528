"""`python -m tffcl` is `tffcl`."""

import sys

from tffcl.lab.cli.main import main

sys.exit(main())
