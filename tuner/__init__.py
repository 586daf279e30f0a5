"""edgetune tunes schedule templates, keeps the results in a database, and builds networks from it."""

import os

# onnxruntime reports the models that it runs, with their names, to its maker, unless this variable is set before it is
# imported. A user who wants these reports sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
