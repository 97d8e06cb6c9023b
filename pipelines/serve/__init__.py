"""Serving: students answer prediction requests, following the registry.

prediction_request  what a request asks: JSON or Arrow, as columns
asof       features of a request that are looked up, as of its time
tables     of int8 or int4, judged before they answer
version    one version of a student, immutable
sources    where versions come from: a run, a student in training, MLflow's registry
model_store  the versions that answer now, swapped by one pointer, and how fresh they are
app        the HTTP interface
interface  the same as an OpenAPI document
logged     a topic of what was served
metrics    what a server has done, for Prometheus
protocol   HTTP with an end to every request
processes  a server in one process or several
ray_serve  the same server as a deployment of Ray Serve
client     asks a server, with the standard library alone
batch      the same predictions for a file, in constant memory
"""
