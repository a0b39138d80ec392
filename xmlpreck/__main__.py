"""python -m xmlpreck"""

import sys

from xmlpreck.cli import main

sys.exit(main())
