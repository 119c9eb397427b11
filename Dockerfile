# tvmopt for CPUs, with its server: docker build -t tvmopt . && docker run --rm tvmopt doctor
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /src/
COPY frontend /src/frontend
COPY schedules /src/schedules
COPY targets /src/targets
COPY tuning_logs /src/tuning_logs
RUN pip install --no-cache-dir "/src[serve]" && rm -r /src
RUN useradd --create-home tvmopt
USER tvmopt
WORKDIR /home/tvmopt
ENTRYPOINT ["tvmopt"]
CMD ["--help"]
