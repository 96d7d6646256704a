"""Leases, the queue and the care of nodes, over simulated nodes and a clock that jumps."""

import asyncio
import json
import random
import time
from contextlib import asynccontextmanager

import pytest

from patchwright.errors import StoreError
from patchwright.fleet import api
from patchwright.fleet.journal import Journal, LeaseState
from patchwright.fleet.pool import Pool, PoolOptions
from patchwright.fleet.pool_api import AllocateRequest, ForkRequest, PoolError
from patchwright.fleet.simulated import SimulatedNodes

HOST = AllocateRequest(image="host")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@asynccontextmanager
async def a_pool(nodes, journal=None, clock=time.monotonic, **options):
    for node in nodes.values():
        node._clock = clock
    options.setdefault("look_seconds", 0.05)
    pool = Pool(list(nodes), nodes.connect, journal or Journal(), PoolOptions(**options), clock)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


async def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


def boxes(nodes):
    return sum(len(node.boxes) for node in nodes.values())


def test_a_lease_from_birth_to_death():
    async def run():
        nodes = SimulatedNodes.many(2)
        async with a_pool(nodes) as pool:
            lease = await pool.allocate(HOST)
            assert set(lease) == {"lease_id", "container_id", "node_url", "token", "fence", "ttl"}
            assert lease["lease_id"].startswith("swe-lease-") and len(lease["lease_id"]) == 26
            reply = await pool.forward(lease["lease_id"], api.EXEC, {"command": "echo"})
            assert json.loads(reply.body)["returncode"] == 0
            assert await pool.end(lease["lease_id"]) and boxes(nodes) == 0
            assert await pool.end(lease["lease_id"]), "closing twice is allowed"
            with pytest.raises(PoolError, match="over") as caught:
                await pool.forward(lease["lease_id"], api.EXEC, {"command": "echo"})
            assert caught.value.status == 410
            with pytest.raises(PoolError, match="no lease") as caught:
                await pool.end("swe-lease-of-somebody-else")
            assert caught.value.status == 404

    asyncio.run(run())


def test_fences_only_grow():
    async def run():
        async with a_pool(SimulatedNodes.many(2)) as pool:
            fences = [(await pool.allocate(HOST))["fence"] for _ in range(20)]
            assert fences == sorted(set(fences))

    asyncio.run(run())


def test_the_queue_is_fair_and_bounded_and_has_deadlines():
    async def run():
        nodes = SimulatedNodes.many(1)
        async with a_pool(nodes, max_per_node=1, max_waiting=5) as pool:
            held = await pool.allocate(HOST)
            with pytest.raises(PoolError, match="no free slot") as caught:
                await pool.allocate(HOST.model_copy(update={"wait": 0.05}))
            assert caught.value.status == 503 and len(pool.line) == 0
            served = []

            async def one(number):
                lease = await pool.allocate(HOST)
                served.append(number)
                await pool.end(lease["lease_id"])

            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(one(number))
                    await asyncio.sleep(0)
                await until(lambda: len(pool.line) == 5)
                with pytest.raises(PoolError, match="wait for a box already") as caught:
                    await pool.allocate(HOST)
                assert caught.value.status == 503
                await pool.end(held["lease_id"])
            assert served == [0, 1, 2, 3, 4]

    asyncio.run(run())


def test_who_hangs_up_leaves_the_queue_and_leaves_no_box():
    async def run():
        nodes = SimulatedNodes.many(1, create_seconds=0.1)
        async with a_pool(nodes, max_per_node=1) as pool:
            making = asyncio.create_task(pool.allocate(HOST))
            waiting = asyncio.create_task(pool.allocate(HOST))
            await asyncio.sleep(0.05)
            assert len(pool.line) == 1
            waiting.cancel()
            making.cancel()
            await asyncio.gather(making, waiting, return_exceptions=True)
            await until(lambda: len(pool.line) == len(pool.book) == boxes(nodes) == 0)
            assert next(iter(pool.nodes.values())).state.busy == 0
            assert (await pool.allocate(HOST))["node_url"]

    asyncio.run(run())


def test_one_key_is_one_lease_however_often_it_is_asked():
    async def run():
        nodes = SimulatedNodes.many(2, create_seconds=0.05)
        async with a_pool(nodes) as pool:
            impatient = asyncio.create_task(pool.allocate(HOST, "key"))
            await asyncio.sleep(0.02)
            impatient.cancel()
            leases = await asyncio.gather(*(pool.allocate(HOST, "key") for _ in range(5)))
            leases.append(await pool.allocate(HOST, "key"))
            assert len({lease["lease_id"] for lease in leases}) == boxes(nodes) == 1
            with pytest.raises(PoolError) as caught:
                await pool.allocate(AllocateRequest(image="other"), "key")
            assert caught.value.status == 409

    asyncio.run(run())


def test_a_black_hole_is_left_alone_and_comes_back():
    async def run():
        nodes = SimulatedNodes.many(2)
        hole, sound = nodes.values()
        hole.fails, clock = True, Clock()
        async with a_pool(nodes, clock=clock, max_per_node=100) as pool:
            for number in range(30):
                ask = AllocateRequest(image=f"image-{number}")
                assert (await pool.allocate(ask))["node_url"] == list(nodes)[1]
            assert hole.creates <= 2, "two images are enough to know"
            hole.fails = False
            clock.now += 60
            for _ in range(31):
                await pool.allocate(HOST)
            assert len(hole.boxes) >= 15 and len(sound.boxes) <= 46

    asyncio.run(run())


def test_an_image_nobody_can_make_fails_clearly_and_harms_nobody():
    async def run():
        nodes = SimulatedNodes.many(3)
        for node in nodes.values():
            node.bad_images = frozenset({"bad"})
        async with a_pool(nodes) as pool:
            with pytest.raises(PoolError, match="made no box of 'bad'") as caught:
                await pool.allocate(AllocateRequest(image="bad"))
            assert caught.value.status == 500
            assert await pool.allocate(HOST)
            await until(lambda: len(pool.book) == 1)

    asyncio.run(run())


def test_a_node_without_the_image_sends_nobody_away_while_another_has_it():
    async def run():
        nodes = SimulatedNodes.many(2)
        docker, other = nodes.values()
        docker.images, other.foreign_images = ("host", "mine"), frozenset({"mine"})
        async with a_pool(nodes, max_per_node=1) as pool:
            mine = AllocateRequest(image="mine", wait=10)
            first = await pool.allocate(mine)
            waiting = asyncio.create_task(pool.allocate(mine))
            await until(lambda: other.creates == 1)
            await pool.end(first["lease_id"])
            assert (await waiting)["node_url"] == next(iter(nodes))
            docker.foreign_images = other.foreign_images
            await pool.end((await waiting)["lease_id"])
            with pytest.raises(PoolError, match="no such image") as caught:
                await pool.allocate(mine)
            assert caught.value.status == 400

    asyncio.run(run())


def test_use_begins_a_new_term_and_without_it_the_lease_ends():
    async def run():
        nodes, clock = SimulatedNodes.many(1), Clock()
        async with a_pool(nodes, clock=clock, ttl=100) as pool:
            used, beaten, direct, idle = [(await pool.allocate(HOST)) for _ in range(4)]
            for _ in range(3):
                clock.now += 60
                await pool.forward(used["lease_id"], api.EXEC, {"command": "x"})
                await pool.heartbeat(beaten["lease_id"])
                body = json.dumps({"container_id": direct["container_id"], "command": "y"}).encode()
                await nodes.connect(direct["node_url"]).request("POST", api.EXEC, body=body)
                await asyncio.sleep(0.15)
            alive = {lease.id for lease in pool.book.all()}
            assert alive == {lease["lease_id"] for lease in (used, beaten, direct)}
            with pytest.raises(PoolError) as caught:
                await pool.heartbeat(idle["lease_id"])
            assert caught.value.status == 410 and boxes(nodes) == 3

    asyncio.run(run())


def test_a_fork_is_a_lease_of_its_own_at_the_same_node():
    async def run():
        nodes = SimulatedNodes.many(4)
        async with a_pool(nodes) as pool:
            source = await pool.allocate(HOST)
            copies = [await pool.fork(ForkRequest(lease_id=source["lease_id"])) for _ in range(3)]
            assert {copy["node_url"] for copy in copies} == {source["node_url"]}
            assert len({copy["lease_id"] for copy in copies} | {source["lease_id"]}) == 4
            await pool.end(source["lease_id"])
            await pool.forward(copies[0]["lease_id"], api.EXEC, {"command": "x"})

    asyncio.run(run())


def test_a_node_that_dies_takes_its_leases_with_it_and_no_others():
    async def run():
        nodes, clock = SimulatedNodes.many(2), Clock()
        dying, sound = nodes.values()
        async with a_pool(nodes, clock=clock, ttl=100) as pool:
            leases = [await pool.allocate(HOST) for _ in range(8)]
            dying.down = True
            await until(lambda: not pool.nodes["http://node-0:5000"].state.healthy)
            with pytest.raises(PoolError, match="cannot be reached"):
                await pool.forward(_at(leases, 0), api.EXEC, {"command": "x"})
            await pool.forward(_at(leases, 1), api.EXEC, {"command": "x"})
            assert (await pool.allocate(HOST))["node_url"] == "http://node-1:5000"
            clock.now += 60
            for lease in pool.book.all():
                if lease.node.reachable:
                    await pool.heartbeat(lease.id)
            clock.now += 60
            await until(lambda: len(pool.book) == 5)
            dying.down = False
            await until(lambda: not dying.boxes)
            assert len(sound.boxes) == 5

    asyncio.run(run())


def _at(leases, number):
    return next(x["lease_id"] for x in leases if x["node_url"] == f"http://node-{number}:5000")


def test_a_restart_goes_on_with_what_is_alive_and_clears_the_rest(tmp_path):
    async def run():
        nodes, file = SimulatedNodes.many(2), tmp_path / "pool.db"
        async with a_pool(nodes, Journal(file)) as pool:
            kept = [await pool.allocate(HOST, f"key-{number}") for number in range(6)]
        lost = kept.pop()
        node = nodes.connect(lost["node_url"])
        del node.boxes[lost["container_id"]]
        journal = Journal(file)
        half = next(row for row in journal.leases() if row.lease_id == kept[0]["lease_id"])
        journal.remove(half.lease_id)  # a box whose lease the journal does not know: it was closed
        journal.close()
        foreign = json.dumps({"image": "host", "lease_id": "swe-lease-ffffffffffffffff", "fence": 1}).encode()
        await node.request("POST", api.CREATE, body=foreign)
        async with a_pool(nodes, Journal(file)) as pool:
            await until(lambda: boxes(nodes) == 4 + 1)
            assert {lease.id for lease in pool.book.all()} == {x["lease_id"] for x in kept[1:]}
            for number, lease in enumerate(kept[1:], start=1):
                await pool.forward(lease["lease_id"], api.EXEC, {"command": "x"})
                assert await pool.allocate(HOST, f"key-{number}") == lease
            with pytest.raises(PoolError) as caught:
                await pool.forward(lost["lease_id"], api.EXEC, {"command": "x"})
            assert caught.value.status == 410
            assert (await pool.allocate(HOST))["fence"] > max(x["fence"] for x in kept)
            busy = sum(node.state.busy for node in pool.nodes.values())
            assert busy == len(pool.book) == 5

    asyncio.run(run())


def test_a_box_that_was_being_made_when_the_pool_died_is_removed(tmp_path):
    async def run():
        nodes, file = SimulatedNodes.many(1), tmp_path / "pool.db"
        async with a_pool(nodes, Journal(file)) as pool:
            lease = await pool.allocate(HOST)
            row = pool.book.find(lease["lease_id"]).row
        journal = Journal(file)
        journal.put(type(row)(lease_id=row.lease_id, node=row.node, image=row.image, fence=row.fence))
        journal.close()
        async with a_pool(nodes, Journal(file)) as pool:
            await until(lambda: boxes(nodes) == len(pool.book) == 0)

    asyncio.run(run())


def test_nodes_join_and_leave_while_it_runs():
    async def run():
        nodes = SimulatedNodes.many(2)
        first, second = nodes
        pool = Pool([first], nodes.connect, Journal(), PoolOptions(max_per_node=1, look_seconds=0.05))
        await pool.start()
        held = await pool.allocate(HOST)
        waiting = asyncio.create_task(pool.allocate(HOST))
        await asyncio.sleep(0.05)
        pool.join(second)
        assert (await waiting)["node_url"] == second
        pool.leave(first)
        assert await pool.forward(held["lease_id"], api.EXEC, {"command": "x"})
        await pool.end(held["lease_id"])
        await until(lambda: first not in pool.nodes)
        with pytest.raises(PoolError, match="no node"):
            pool.leave(first)
        await pool.close()

    asyncio.run(run())


def test_warm_boxes_are_handed_over_and_made_anew():
    async def run():
        nodes = SimulatedNodes.many(1, create_seconds=3.0)
        async with a_pool(nodes, warm={"host": 2}, max_per_node=3) as pool:
            await until(lambda: len(pool._care.ready("host")) == 2)
            started = time.monotonic()
            lease = await pool.allocate(HOST, "key")
            assert time.monotonic() - started < 2.5, "it was not made first"
            assert await pool.allocate(HOST, "key") == lease
            await pool.forward(lease["lease_id"], api.EXEC, {"command": "x"})
            special = await pool.allocate(AllocateRequest(image="host", env={"A": "1"}, wait=20))
            assert special["lease_id"] != lease["lease_id"]
            await pool.allocate(AllocateRequest(image="host", env={"A": "1"}, wait=20))
            assert not pool._care.ready("host"), "whoever waits goes before what is kept in store"

    asyncio.run(run())


def test_a_node_that_hangs_does_not_hold_up_those_who_want_a_box():
    async def run():
        nodes = SimulatedNodes.many(2)
        hanging, sound = nodes.values()
        async with a_pool(nodes) as pool:
            hanging.create_seconds = 30.0
            asking = [asyncio.create_task(pool.allocate(HOST)) for _ in range(4)]
            await asyncio.sleep(0.1)
            assert not all(task.done() for task in asking)
            hanging.hangs = True
            assert {lease["node_url"] for lease in await asyncio.gather(*asking)} == {"http://node-1:5000"}
            assert len(sound.boxes) == 4

    asyncio.run(run())


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path):
    async def run():
        nodes, journal = SimulatedNodes.many(1), Journal(tmp_path / "pool.db")
        async with a_pool(nodes, journal, max_per_node=1000) as pool:
            kept = await pool.allocate(HOST)
            pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
            journal._db.execute(f"PRAGMA max_page_count = {pages}")
            granted = [kept["lease_id"]]
            with pytest.raises(StoreError, match="see to its disk"):
                for _ in range(500):
                    granted.append((await pool.allocate(HOST))["lease_id"])
            await until(lambda: boxes(nodes) == len(pool.book) == len(granted))
            await pool.forward(kept["lease_id"], api.EXEC, {"command": "x"})
            assert await pool.end(granted.pop())
            journal._db.execute("PRAGMA max_page_count = 100000")
            granted.append((await pool.allocate(HOST))["lease_id"])
            assert {row.lease_id for row in journal.leases()} == set(granted)
            assert next(iter(pool.nodes.values())).state.busy == len(granted)

    asyncio.run(run())


def test_a_thousand_leases_on_sixty_four_unreliable_nodes():
    """None is lost, none is given twice, every slot is free at the end."""

    async def run():
        nodes = SimulatedNodes.many(64, create_seconds=0.002)
        chance = random.Random(5)
        async with a_pool(nodes, look_seconds=1.0) as pool:
            times, names, closed = [], set(), 0

            async def one(number):
                nonlocal closed
                started = time.process_time(), time.perf_counter()
                lease = await pool.allocate(HOST, f"key-{number}")
                times.append(time.perf_counter() - started[1])
                assert lease["lease_id"] not in names
                names.add(lease["lease_id"])
                await pool.forward(lease["lease_id"], api.EXEC, {"command": str(number)})
                if chance.random() < 0.5:
                    await pool.end(lease["lease_id"])
                    closed += 1

            for node in list(nodes.values())[::32]:  # two: a box is tried on three
                node.fails = True
            async with asyncio.TaskGroup() as group:
                for number in range(1000):
                    group.create_task(one(number))
                    if number % 20 == 0:
                        await asyncio.sleep(0.005)
            assert len(names) == 1000 and boxes(nodes) == 1000 - closed
            ran = sum((node.ran for node in nodes.values()), start=type(nodes["http://node-0:5000"].ran)())
            assert set(ran.values()) == {1} and len(ran) == 1000
            leases = pool.book.all()
            assert all(lease.row.state is LeaseState.OPEN for lease in leases)
            await asyncio.gather(*(pool.end(lease.id) for lease in leases))
            assert boxes(nodes) == 0 and sum(node.state.busy for node in pool.nodes.values()) == 0
            print(f"allocate p99 {sorted(times)[989] * 1000:.1f} ms")

    asyncio.run(run())
