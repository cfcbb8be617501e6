# The HTTP service of an exported detector, without torch and not as root:
#   docker build -t spcp-serve .
#   docker run --rm -p 8000:8000 -v "$PWD/detector.onnx:/detector.onnx:ro" spcp-serve
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY src src
# What the extra "serve" names, and numpy; spcp alone would bring torch along, which the service does not import. There is
# no compiler here: the kernels are for training.
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['optional-dependencies']['serve'], *(d for d in p['dependencies'] if not d.startswith('torch')), sep='\n')" \
    > requirements.txt \
 && pip wheel --quiet --no-cache-dir --wheel-dir /wheels --constraint constraints.txt --requirement requirements.txt \
 && pip wheel --quiet --no-cache-dir --wheel-dir /wheels --no-deps .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install --quiet --no-cache-dir --no-index --no-deps /wheels/*.whl && rm -r /wheels \
 && useradd --system --no-create-home spcp
USER spcp
EXPOSE 8000
HEALTHCHECK --start-period=20s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["spcp", "serve", "--host", "0.0.0.0"]
CMD ["/detector.onnx"]
