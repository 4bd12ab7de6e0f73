# The server in an image of Debian 12, for CPUs.
#
#   docker build -t mneme .
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" mneme serve -m /models/needle-27m-q8_0.gguf --host 0.0.0.0
FROM debian:12-slim AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
COPY tools/packages tools/packages
RUN tools/packages build
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY include include
COPY src src
COPY apps apps
RUN cmake --preset release -DMNEME_TESTS=OFF -DMNEME_CUDA=OFF \
    && cmake --build --preset release --target mneme_program mneme_doctor mneme_serve mneme_eval mneme_bench \
    && strip build/mneme build/mneme-doctor build/mneme-serve build/mneme-eval build/mneme-bench \
    && ldd build/mneme build/mneme-serve | awk '/=> \//{print $3}' | xargs -n1 readlink -f | xargs dpkg -S 2>/dev/null \
    | cut -d: -f1 | sort -u > build/runtime-packages

FROM debian:12-slim
COPY --from=build /src/build/runtime-packages /tmp/runtime-packages
RUN apt-get update \
    && xargs -a /tmp/runtime-packages apt-get install -y --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 mneme
COPY --from=build /src/build/mneme /usr/local/bin/mneme
COPY --from=build /src/build/mneme-doctor /src/build/mneme-serve /src/build/mneme-eval /src/build/mneme-bench /usr/local/libexec/mneme/
USER 10001
WORKDIR /home/mneme
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
  CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["mneme"]
CMD ["--help"]
