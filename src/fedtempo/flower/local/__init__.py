"""A Flower federation on this machine: a SuperLink and SuperNodes as processes, to try an app before it is deployed.

with LocalFederation("federation") as federation:
    for i in range(4):
        federation.start_node(f"site-{i}", {"partition-id": i, "num-partitions": 4})
    run = federation.run("my-app", {"wait": 30.0})
"""

from fedtempo.flower.local.federation import FederationError, LocalFederation, Node, Run

__all__ = ["FederationError", "LocalFederation", "Node", "Run"]
