"""edgetune: schedule templates, tuned into a database, and networks built from it."""

import os

# onnxruntime tells its maker about the models that it runs, their names included, unless it is told not to before it is
# imported. Whoever wants that sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
