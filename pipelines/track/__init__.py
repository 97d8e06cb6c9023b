"""Figures of a run for other systems: Prometheus, and MLflow with parameters and registered models.

    catalogue      every metric of a run and of a server, and Prometheus' text of them
    endpoint       that text over HTTP
    dashboards     files for Prometheus and Grafana
    webhooks       alarms for people: what is sent, once, and when it is over
    mlflow         the queue in front of a store, and everything that is written to it
    registration   what is registered of a student: its versions, their tags, the champion
    mirror         the ledger of versions in MLflow's registry
    wheel          the environment of a registered model

What MLflow loads a registered model with lies in `pipelines/served_model.py`: stored models name it.
"""
