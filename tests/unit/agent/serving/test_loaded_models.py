"""Models on demand: loaded once for all, unloaded least recently used first, never while in use."""

import random
import threading

import pytest
from served_fakes import DEADLINE_S, LAYER, FakeSession, rows, wait_for

from inferometer.agent.hardware.environment import CPU, Device, DeviceKind
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.loaded_models import LoadedModels, Loading
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.errors import ArtifactError, MemoryLimitError, SessionError, SessionLimitError

MIB = 1024 * 1024
GPU = Device(DeviceKind.GPU)


class Disk:
    """The models that there are, and the memory of the process that they take when they are loaded."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        self.used = {CPU: 100 * MIB, GPU: 0}
        self.go = threading.Event()
        self.go.set()
        self.error: BaseException | None = None
        self.now_s = 0.0

    def used_bytes(self, device):
        return self.used[device]

    def clock(self):
        self.now_s += 1.0  # each use is later than the one before
        return self.now_s

    def loading(self, name, mib=10, expected_mib=0, device=CPU):
        def load(on_closed):
            session = FakeSession(name)
            self.sessions.append(session)
            assert self.go.wait(DEADLINE_S)
            if self.error is not None:
                raise self.error
            self.used[device] += mib * MIB
            return ServedModel(session, BatchingOptions(), on_closed=on_closed)

        return Loading(name, {device: expected_mib * MIB}, load)

    @property
    def loaded(self):
        """The names of the models that are loaded, in the order in which they were."""
        return [s.description.manifest.name for s in self.sessions if not s.closed]


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def make(disk):
    made = []

    def models(limit=100, idle_s=100.0, memory_mib=None):
        bound = None if memory_mib is None else memory_mib * MIB
        made.append(LoadedModels(limit, idle_s, bound, disk.used_bytes, disk.clock))
        return made[-1]

    yield models
    for each in made:
        each.close()
        assert each.wait_for_none(DEADLINE_S)
    assert disk.loaded == []


def used_once(models, disk, *names, **about):
    for name in names:
        models.lease(name, disk.loading(name, **about)).release()


def in_threads(count, task):
    """What ``task`` gave or raised in each of several threads that began together."""
    found = []
    together = threading.Barrier(count)

    def run():
        together.wait(DEADLINE_S)
        try:
            found.append(task())
        except Exception as error:  # noqa: BLE001 - told to the test
            found.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return found, threads


def joined(threads):
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_model_is_loaded_when_it_is_first_asked_for_and_stays(make, disk):
    models = make()
    assert len(models) == 0
    used_once(models, disk, "a", "a")

    assert disk.loaded == ["a"]
    assert len(disk.sessions) == 1
    assert list(models.models) == ["a"]


def test_many_that_ask_at_once_get_one_model(make, disk):
    models = make()
    disk.go.clear()
    found, threads = in_threads(8, lambda: models.lease("a", disk.loading("a")))
    wait_for(lambda: disk.sessions)
    assert models.is_loading("a")
    disk.go.set()
    joined(threads)

    assert len({lease.model for lease in found}) == 1
    assert len(disk.sessions) == 1
    for lease in found:
        lease.release()


def test_an_error_of_the_loading_reaches_each_that_waited_and_the_next_one_tries_again(make, disk):
    models = make()
    disk.go.clear()
    disk.error = ArtifactError("the file is truncated")
    found, threads = in_threads(5, lambda: models.lease("a", disk.loading("a")))
    wait_for(lambda: disk.sessions)
    disk.go.set()
    joined(threads)

    assert [(type(error), str(error)) for error in found] == [(ArtifactError, "the file is truncated")] * 5
    disk.error = None
    for session in disk.sessions:
        session.close()  # what failed to load holds nothing
    used_once(models, disk, "a")
    assert disk.loaded == ["a"]


def test_the_least_recently_used_makes_room_in_the_limit_of_memory(make, disk):
    models = make(memory_mib=35)
    used_once(models, disk, "a", "b", "c", "a", "d")

    assert disk.loaded == ["a", "c", "d"]


def test_a_model_in_use_is_not_unloaded_although_it_is_the_least_recently_used(make, disk):
    models = make(memory_mib=25)
    held = models.lease("a", disk.loading("a"))
    used_once(models, disk, "b", "c")

    assert disk.loaded == ["a", "c"]
    assert held.model.infer({LAYER: rows(1)}).outputs["doubled"].tolist() == [[2, 2]]
    held.release()


def test_where_models_in_use_leave_no_memory_another_is_refused_and_freed_again(make, disk):
    models = make(memory_mib=25)
    held = [models.lease(name, disk.loading(name)) for name in "ab"]
    with pytest.raises(MemoryLimitError) as raised:
        models.lease("c", disk.loading("c"))
    assert str(raised.value) == (
        "model c takes 10 MiB on cpu, where models in use take 20 of the agent's 25 MiB (--memory_limit); "
        "try again later"
    )
    assert disk.loaded == ["a", "b"]
    # now it is known what it takes, and it is refused before it is loaded
    loads = len(disk.sessions)
    with pytest.raises(MemoryLimitError):
        models.lease("c", disk.loading("c"))
    assert len(disk.sessions) == loads

    held[0].release()
    used_once(models, disk, "c")
    assert disk.loaded == ["b", "c"]
    held[1].release()


def test_a_model_that_is_larger_than_the_limit_is_refused_and_no_other_is_unloaded_for_it(make, disk):
    models = make(memory_mib=25)
    used_once(models, disk, "a")
    with pytest.raises(MemoryLimitError, match=r"^model big takes 30 MiB on cpu; the agent's --memory_"):
        models.lease("big", disk.loading("big", expected_mib=30))

    assert disk.loaded == ["a"]


def test_the_size_of_the_files_counts_where_less_is_measured(make, disk):
    models = make(memory_mib=25)
    used_once(models, disk, "a", "b", mib=0, expected_mib=20)

    assert disk.loaded == ["b"]


def test_each_device_has_the_limit_by_itself(make, disk):
    models = make(memory_mib=15)
    used_once(models, disk, "a")
    used_once(models, disk, "g", device=GPU)
    used_once(models, disk, "h", device=GPU)

    assert disk.loaded == ["a", "h"]


def test_a_model_on_several_devices_takes_its_part_of_the_limit_of_each(make, disk):
    models, gpus = make(memory_mib=50), (Device.gpus("0"), Device.gpus("1"))
    disk.used |= dict.fromkeys(gpus, 0)

    def load(on_closed):
        disk.sessions.append(FakeSession("both"))
        disk.used[gpus[0]] += 30 * MIB
        disk.used[gpus[1]] += 20 * MIB
        return ServedModel(disk.sessions[-1], BatchingOptions(), on_closed=on_closed)

    with models.lease("both", Loading("both", dict.fromkeys(gpus, 0), load)):
        models.lease("fits", disk.loading("fits", 30, device=gpus[1])).release()
        with pytest.raises(
            MemoryLimitError, match="full takes 30 MiB on gpu:0, where models in use take 30 "
        ):
            models.lease("full", disk.loading("full", 30, device=gpus[0]))
        assert disk.loaded == ["both", "fits"]
    used_once(models, disk, "full", mib=30, device=gpus[0])  # for which the model on both is unloaded

    assert disk.loaded == ["fits", "full"]


def test_a_model_that_is_too_large_for_one_of_its_devices_makes_no_other_leave(make, disk):
    models, gpus = make(memory_mib=50), (Device.gpus("0"), Device.gpus("1"))
    disk.used |= dict.fromkeys(gpus, 0)
    used_once(models, disk, "a", mib=40, device=gpus[1])
    expected = dict(zip(gpus, (60 * MIB, 20 * MIB), strict=True))

    with pytest.raises(MemoryLimitError, match="large takes 60 MiB on gpu:0; the agent's --memory_limit is"):
        models.lease("large", Loading("large", expected, lambda _: pytest.fail("loaded")))

    assert disk.loaded == ["a"]


def test_as_many_models_as_may_be_are_loaded(make, disk):
    models = make(limit=2)
    used_once(models, disk, "a", "b", "c")
    assert disk.loaded == ["b", "c"]
    held = [models.lease(name, disk.loading(name)) for name in "bc"]
    with pytest.raises(SessionLimitError, match="limit of 2 models loaded, all in use"):
        models.lease("d", disk.loading("d"))
    for lease in held:
        lease.release()


def test_a_model_of_the_callers_own_is_shared_with_nobody_and_freed_when_it_is_given_back(make, disk):
    models = make()
    first, second = (models.lease(None, disk.loading("a")) for _ in range(2))
    assert first.model is not second.model
    first.release()
    first.release()

    assert disk.loaded == ["a"]
    second.release()
    assert disk.loaded == []


def test_an_unloaded_model_in_use_is_freed_by_the_last_that_leaves_it(make, disk):
    models = make()
    leases = [models.lease("a", disk.loading("a")) for _ in range(2)]
    assert models.unload("a")
    assert not models.unload("a")
    assert models.models == {}
    leases[0].release()
    assert disk.loaded == ["a"]
    leases[1].release()

    wait_for(lambda: not disk.loaded)
    used_once(models, disk, "a")
    assert disk.loaded == ["a"]


def test_a_model_that_nobody_uses_for_long_is_unloaded_unless_it_is_to_stay(make, disk):
    models = make(idle_s=50.0)
    used_once(models, disk, "a")
    models.lease("kept", disk.loading("kept"), keep=True).release()
    held = models.lease("held", disk.loading("held"))
    assert models.close_idle() == 0
    disk.now_s += 100

    assert models.close_idle() == 1
    wait_for(lambda: disk.loaded == ["kept", "held"])
    held.release()


def test_when_all_is_closed_nothing_is_loaded_any_more(make, disk):
    models = make()
    used_once(models, disk, "a")
    held = models.lease("b", disk.loading("b"))
    models.close()
    wait_for(lambda: disk.loaded == ["b"])
    with pytest.raises(SessionError, match="is stopping"):
        models.lease("c", disk.loading("c"))
    assert not models.wait_for_none(0)
    held.release()

    assert models.wait_for_none(DEADLINE_S)


def test_many_threads_with_few_places_never_lose_a_model_in_use(make, disk):
    models = make(limit=3, memory_mib=1000)
    refused = []

    def work(seed):
        choose = random.Random(seed)
        for _ in range(60):
            name = choose.choice("abcdef")
            try:
                lease = models.lease(name, disk.loading(name, mib=1))
            except SessionLimitError:
                refused.append(name)
                continue
            # a model that was closed under its user would fail this
            assert lease.model.manifest.name == name
            assert lease.model.infer({LAYER: rows(3)}).outputs["doubled"].tolist() == [[6, 6]]
            lease.release()
            if choose.random() < 0.1:
                models.unload(name)  # which others may have in use
        return seed

    seeds = iter(range(100))
    found, threads = in_threads(6, lambda: work(next(seeds)))
    joined(threads)

    assert sorted(found) == list(range(6))
    assert len(models) <= 3


class IdleBorrowers:
    """They keep what they are lent, and give it up for others."""

    def __init__(self) -> None:
        self.leases = []

    def least_recently_used(self, models):
        idle = [lease.model for lease in self.leases]
        return next((model for model, users in models.items() if idle.count(model) == users), None)

    def give_up(self, model):
        for lease in [lease for lease in self.leases if lease.model is model]:
            self.leases.remove(lease)
            lease.release()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("limit", "memory_mib"), [(2, None), (9, 25)])
def test_model_that_is_lent_to_the_idle_alone_is_unloaded_for_another(disk, shared, limit, memory_mib):
    borrowers = IdleBorrowers()
    bound = None if memory_mib is None else memory_mib * MIB
    models = LoadedModels(limit, 100.0, bound, disk.used_bytes, disk.clock, borrowers)
    busy = models.lease("a", disk.loading("a"))
    borrowers.leases = [models.lease("b" if shared else None, disk.loading("b", expected_mib=10))]
    borrowers.leases += [models.lease("a", disk.loading("a"))]  # which somebody else uses, too
    models.lease("c", disk.loading("c", expected_mib=10))
    wait_for(lambda: disk.loaded == ["a", "c"])
    with pytest.raises((SessionLimitError, MemoryLimitError), match="in use"):
        models.lease("d", disk.loading("d", expected_mib=10))
    busy.release()
    models.lease("d", disk.loading("d", expected_mib=10))
    wait_for(lambda: disk.loaded == ["c", "d"])
    models.close()


def test_agent_is_full_where_nobody_else_can_be_served(disk, make):
    models = make(limit=2)
    first = models.lease(None, disk.loading("a"))
    assert not models.is_full
    second = models.lease(None, disk.loading("b"))
    assert models.is_full
    second.release()
    third = models.lease("c", disk.loading("c"))  # which others may use, too
    assert not models.is_full
    first.release()
    third.release()
