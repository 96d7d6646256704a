"""stub"""


async def from_pypi(*a, **k):
    raise NotImplementedError
