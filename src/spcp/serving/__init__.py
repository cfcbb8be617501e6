"""An exported detector behind HTTP: `spcp serve`. onnxruntime runs it; torch is not imported.

server.py      serve: the file, the port, the processes
app.py         build_app: the paths, what they answer, and their limits
samples.py     from the bytes of a request to samples
batching.py    Batcher: samples of many requests in one batch
page.html, docs.html    what a browser shows
"""
