"""`python -m anabranch.cli` is `anabranch`."""

import sys

from anabranch.cli.main import main

sys.exit(main())
