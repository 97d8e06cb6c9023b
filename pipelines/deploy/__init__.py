"""Files with which others start what a run needs.

manifests  a run on Kubernetes, from a config and its price; `k8s/` holds the templates
"""
