"""`[cluster] use = "ray"`: reinforcement learning over the machines of a Ray cluster. See docs/ray.md.

The recipe (`recipes/rl.py`) runs where it was started and is the same; its parts are actors elsewhere:

    connect      the cluster, and what it must have
    parcels      folders between machines that share no disk
    engines      actors that sample, and the engine before them
    rollouts     actors that make attempts, and the line before them
    ranks        actors that train, and the worker before each
    site         all of it placed and opened
"""

from patchwright.errors import ConfigError

try:
    import ray as _ray
except ImportError as error:
    raise ConfigError(
        "`[cluster] use = \"ray\"` needs Ray, which is not installed; pip install 'patchwright[ray]' on "
        "every machine of the cluster"
    ) from error

__all__ = ["VERSION"]

VERSION: str = _ray.__version__
"""Of Ray, the same on every machine."""
