"""The build backend of `pip install ./python`: scikit-build-core's, in the folder above."""

import os
import pathlib

os.chdir(pathlib.Path(__file__).resolve().parent.parent)

from scikit_build_core.build import *  # noqa: E402, F403
