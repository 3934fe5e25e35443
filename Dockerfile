# syntax=docker/dockerfile:1
# One image for every process of Sediment: the flows, the query service, MCP over HTTP, the jobs.
#
#   docker build -t sediment:0.1.0 .
#
# The base is pinned by its full tag. Pin it by digest where you build:
#   docker buildx imagetools inspect python:3.12.12-slim-bookworm    # gives sha256:...
#   docker build --build-arg PYTHON_IMAGE=python:3.12.12-slim-bookworm@sha256:... -t sediment:0.1.0 .
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/sediment
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY stores stores
COPY connectors connectors
COPY flows flows
# Every dependency comes as a wheel but jieba, which is plain Python: no compiler is needed.
RUN /opt/sediment/bin/pip install --constraint constraints.txt ".[otel]" \
    && /opt/sediment/bin/python -m compileall -q /opt/sediment/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="sediment" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# A fixed number, so that volumes and pod security policies can name it; no shell, no home.
RUN groupadd --system --gid 65532 sediment \
    && useradd --system --uid 65532 --gid 65532 --no-create-home --home-dir /nonexistent \
       --shell /usr/sbin/nologin sediment \
    && install -d -m 0750 -o 65532 -g 65532 /var/lib/sediment /etc/sediment
COPY --from=build /opt/sediment /opt/sediment
ENV PATH=/opt/sediment/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SEDIMENT_DATA_DIR=/var/lib/sediment
# The root file system may be read-only: only the data folder and /tmp are written to.
WORKDIR /var/lib/sediment
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["sediment"]
CMD ["--help"]
