# evofeed's service, jobs and Ray workers in one image.
#   docker build -t evofeed .
#   docker run --rm evofeed --help
# The package runs on any Python from 3.11 on; a GPU trainer needs its own image with CUDA.

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
# src/evofeed links to the rooms at the root, so all of them are needed.
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
COPY featurize ./featurize
COPY store ./store
COPY loader ./loader
COPY service ./service
COPY trainer ./trainer
COPY kernels ./kernels
COPY synth ./synth
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[featurize,service,s3]"

FROM python:3.12-slim-bookworm
RUN groupadd --gid 10001 evofeed \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin evofeed \
    && install -d -o evofeed -g evofeed -m 0700 /var/lib/evofeed /data
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba \
    RAY_USAGE_STATS_ENABLED=0 \
    EVOFEED_HOME=/var/lib/evofeed \
    EVOFEED_HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
EXPOSE 8461
# Answers only once the database is there and holds the newest tables.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8461/readyz', timeout=4)"]
ENTRYPOINT ["evofeed"]
CMD ["serve"]
