"""The fleet: nodes that keep boxes, a pool that leases them, and the clients of both, over HTTP and JSON."""
