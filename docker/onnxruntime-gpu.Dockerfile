# inferometer with ONNX Runtime on NVIDIA GPUs. From the root of a checkout:
#   docker build -f docker/onnxruntime-gpu.Dockerfile -t inferometer/onnxruntime:amd64-gpu .
#   docker run --rm --gpus all inferometer/onnxruntime:amd64-gpu predict dataset --model_name=DigitsCNN --gpu --publish=false
ARG PYTHON_IMAGE=python:3.11.15-slim-bookworm@sha256:b18992999dbe963a45a8a4da40ac2b1975be1a776d939d098c647482bcad5cba

# The framework, in a virtual environment of its own that holds no pip.
FROM ${PYTHON_IMAGE} AS framework
WORKDIR /build
COPY constraints.txt ./
COPY docker/requirements/onnxruntime-gpu.txt requirements.txt
RUN python -m venv --without-pip /opt/inferometer \
 && pip --python /opt/inferometer/bin/python install --no-cache-dir --constraint constraints.txt \
      --requirement requirements.txt

# The program's wheel with what serves HTTP, scores objects and splits texts, and those of its dependencies
# that the framework has not brought. They are put aside in /program, so that a change of the program makes a
# small layer, and not that of the framework again.
FROM framework AS program
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY inferometer inferometer
COPY agent agent
COPY client client
COPY evaluators evaluators
COPY manifests manifests
COPY protos protos
RUN pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir dist . \
 && pip --python /opt/inferometer/bin/python install --no-cache-dir --constraint constraints.txt \
      --prefix /program "$(echo dist/*.whl)[http,coco,text]" \
 && cp --archive /program/. /opt/inferometer/ \
 && pip --python /opt/inferometer/bin/python check

FROM ${PYTHON_IMAGE}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="inferometer/onnxruntime" \
      org.opencontainers.image.description="Evaluates machine-learning inference with ONNX Runtime on NVIDIA GPUs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"

# Nothing is installed in the container later: pip and its like are taken out of reach.
RUN pip uninstall --yes --root-user-action=ignore setuptools wheel pip \
 && useradd --create-home --uid 1000 agent \
 && install --directory --owner=agent --group=agent /data
COPY --from=framework /opt/inferometer /opt/inferometer
# CUDA's libraries come as wheels; the framework looks for them where the loader does.
RUN find /opt/inferometer/lib -type d -path '*/nvidia/*/lib' > /etc/ld.so.conf.d/nvidia-wheels.conf \
 && ldconfig
COPY --from=program /program /opt/inferometer

USER 1000:1000
WORKDIR /data
ENV PATH=/opt/inferometer/bin:$PATH \
    AGENT_DATA_DIR=/data \
    AGENT_CACHE_DIR=/data/cache \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /data
EXPOSE 50051
# Asks the agent that is served at its usual port.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
  CMD ["agent", "status", "127.0.0.1:50051"]
ENTRYPOINT ["agent"]
CMD ["serve", "--host", "0.0.0.0"]
