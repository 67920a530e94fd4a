# The service in a container: `aureole serve` as an unprivileged user, on a root file system that may be read-only.
# docs/serve.md shows how to build and run it.
FROM python:3.11-slim AS build
# Options of pip that select the CPU build of torch, from PyTorch's install page. Without them, pip may take a CUDA build.
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/aureole
ENV PATH=/opt/aureole/bin:$PATH
WORKDIR /opt/build
COPY constraints.txt requirements-serve.lock ./
# Every package by its hash; then torch, whose hash depends on the build, and nothing else: its dependencies are installed.
# hadolint ignore=SC2086
RUN pip install --no-cache-dir --require-hashes --no-deps -r requirements-serve.lock \
    && pip install --no-cache-dir ${TORCH_INDEX} -r constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && pip check

FROM python:3.11-slim
RUN groupadd --gid 10001 aureole \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin aureole
COPY --from=build /opt/aureole /opt/aureole
# Only /tmp needs to be writable. Models come from files: nothing is downloaded at run time.
ENV PATH=/opt/aureole/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
WORKDIR /data
USER 10001:10001
EXPOSE 8765
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8765, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["aureole"]
CMD ["serve", "--index", "/data/gallery.lance", "--host", "0.0.0.0", "--port", "8765"]
