import torch

from patchwright.engine.kv import Layout, PrefixCache, Slab, Span, capacity_for

LAYOUT = Layout(layers=2, kv_heads=1, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def span(ids: list[int]) -> Span:
    made = Span(LAYOUT, len(ids))
    made.ids = ids
    return made


def test_the_longest_beginning_is_found() -> None:
    cache = PrefixCache(LAYOUT, 2**20)
    shared = list(range(40))
    left, right = span([*shared, *([1] * 40)]), span([*shared, *([2] * 40)])
    cache.add(left)
    cache.add(right)
    assert cache.match([*shared, *([1] * 60)]) == (left, 80)
    assert cache.match([*shared, *([2] * 10)]) == (right, 50)
    assert cache.match([*shared, 9])[1] == 40
    assert cache.match([7, *shared]) == (None, 0)


def test_a_span_that_is_continued_is_replaced() -> None:
    cache = PrefixCache(LAYOUT, 2**20)
    cache.add(span(list(range(40))))
    longer = span(list(range(90)))
    cache.add(longer)
    cache.add(span(list(range(50))))  # already answered by the longer one
    assert len(cache) == 1
    assert cache.match(list(range(200))) == (longer, 90)


def test_the_least_recently_used_goes_first_and_bytes_are_bounded() -> None:
    cache = PrefixCache(LAYOUT, 3 * 32 * LAYOUT.token_bytes)
    spans = [span([i] * 32) for i in range(4)]
    for one in spans[:3]:
        cache.add(one)
    cache.match([0] * 32)
    cache.add(spans[3])
    found = [cache.match([i] * 32)[0] for i in range(4)]
    assert found == [spans[0], None, spans[2], spans[3]]
    cache.add(span(list(range(1000))))  # larger than the whole cache
    assert len(cache) == 3
    cache.clear()
    assert cache.match([0] * 32) == (None, 0)


def test_rows_survive_growth_and_the_leaving_of_others() -> None:
    slab = Slab(LAYOUT, 64)
    for i in range(9):
        filled = torch.full((2, 1, 10 + i, 4), float(i))
        assert slab.join(filled, -filled) == i
    slab.leave(2, last_tokens=18)
    k, v = slab.row(2, 18)
    assert len(slab) == 8
    assert k.unique().tolist() == [8.0] and v.unique().tolist() == [-8.0]


def test_capacities_waste_at_most_a_third_beyond_the_smallest() -> None:
    for tokens in range(65, 5000, 7):
        assert tokens <= capacity_for(tokens) <= tokens * 1.5
    assert capacity_for(capacity_for(1000)) == capacity_for(1000)
