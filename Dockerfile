# Two images: the host, which tunes and builds, and the agent, which runs on a board.
#
#   docker build --target host -t edgetune .
#   docker run --rm -v "$PWD:/work" edgetune model resnet18.onnx --minutes 9
#
#   docker build --target agent -t edgetune-agent .       # on the board, or with --platform linux/arm64
#   docker run --rm --network host edgetune-agent
FROM python:3.12-slim AS host
# gcc links kernels; PoCL lets OpenCL be tried without a GPU.
RUN apt-get update -q \
    && apt-get install -q -y --no-install-recommends gcc g++ libc6-dev pocl-opencl-icd ocl-icd-libopencl1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY edgetune edgetune
COPY board_agent board_agent
COPY templates templates
COPY tuner tuner
COPY tuning_db tuning_db
COPY vision_ops vision_ops
RUN pip install --no-cache-dir -c requirements.lock .
WORKDIR /work
ENTRYPOINT ["tune"]

FROM python:3.12-slim AS agent
# The agent needs NumPy and TVM's runtime, nothing of the tuner.
COPY requirements.lock /tmp/
RUN pip install --no-cache-dir -c /tmp/requirements.lock numpy apache-tvm apache-tvm-ffi
WORKDIR /agent
COPY board_agent board_agent
EXPOSE 9190
VOLUME /root/.config/edgetune
ENTRYPOINT ["python", "-m", "board_agent.serve", "--address", "0.0.0.0"]
