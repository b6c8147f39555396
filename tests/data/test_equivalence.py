"""Random pipelines deliver what a plain model says, whichever way they are executed."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

import jaxtribute as jt
from tests.data._support import Dataset, plain, read, rest, saved, stream_of

# --- Operations on datasets of numbers, and what they do to a list ---------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation: on a dataset, and on the list of its elements."""

    name: str
    on_dataset: Callable[[jt.data.Dataset], jt.data.Dataset]
    on_list: Callable[[list[int]], list[int]] | None = None  # None: the order is not predicted

    def __repr__(self) -> str:
        return self.name


def _batches(elements: list[Any], size: int, drop: bool = False) -> list[list[Any]]:
    batches = [elements[i : i + size] for i in range(0, len(elements), size)]
    return [batch for batch in batches if len(batch) == size] if drop else batches


def _interleaved(inputs: list[list[int]], cycle: int, block: int) -> list[int]:
    """What InterleaveDataset of TensorFlow does, with queues."""
    waiting, slots, delivered = list(inputs), [[] for _ in range(cycle)], []
    is_open = [False] * cycle
    turn = 0
    while waiting or any(is_open):
        if not is_open[turn] and waiting:
            slots[turn], is_open[turn] = waiting.pop(0), True
        if is_open[turn]:
            delivered += slots[turn][:block]
            if len(slots[turn]) < block:  # it was found to be at its end
                is_open[turn] = False
            slots[turn] = slots[turn][block:]
        turn = (turn + 1) % cycle
    return delivered


small = st.integers(0, 6)
positive = st.integers(1, 5)


def _steps() -> st.SearchStrategy[Step]:
    """Operations whose order can be predicted."""

    def map_(a: int, parallel: int | None) -> Step:
        return Step(
            f"map(x+{a}, {parallel})",
            lambda d: d.map(lambda x: x + a, parallel),
            lambda e: [x + a for x in e],
        )

    def filter_(k: int) -> Step:
        return Step(
            f"filter(x%{k}!=0)",
            lambda d: d.filter(lambda x: x % k != 0),
            lambda e: [x for x in e if x % k != 0],
        )

    def enumerate_(start: int) -> Step:
        return Step(
            f"enumerate({start}).map(x*7+i)",
            lambda d: d.enumerate(start).map(lambda i, x: x * 7 + i),
            lambda e: [x * 7 + i for i, x in enumerate(e, start)],
        )

    def take(n: int) -> Step:
        return Step(f"take({n})", lambda d: d.take(n), lambda e: e[:n])

    def skip(n: int) -> Step:
        return Step(f"skip({n})", lambda d: d.skip(n), lambda e: e[n:])

    def repeat(n: int) -> Step:
        return Step(f"repeat({n})", lambda d: d.repeat(n), lambda e: e * n)

    def shard(n: int, i: int) -> Step:
        i %= n
        return Step(f"shard({n},{i})", lambda d: d.shard(n, i), lambda e: e[i::n])

    def batch_sum(n: int, drop: bool) -> Step:
        return Step(
            f"batch({n},{drop}).map(sum)",
            lambda d: d.batch(n, drop).map(lambda x: x.sum()),
            lambda e: [sum(batch) for batch in _batches(e, n, drop)],
        )

    def batch_unbatch(n: int, inner: int) -> Step:
        return Step(
            f"batch({n}).skip({inner}).repeat(2).unbatch()",
            lambda d: d.batch(n).skip(inner).repeat(2).unbatch(),
            lambda e: list(itertools.chain(*_batches(e, n)[inner:] * 2)),
        )

    def batch_batch(n: int, m: int) -> Step:
        return Step(
            f"batch({n},drop).batch({m}).unbatch().unbatch()",
            lambda d: d.batch(n, True).batch(m).unbatch().unbatch(),
            lambda e: list(itertools.chain(*_batches(e, n, True))),
        )

    def concatenate(n: int, streamed: bool) -> Step:
        other = stream_of(n) if streamed else Dataset.range(n)
        return Step(
            f"concatenate({'stream' if streamed else 'range'} {n})",
            lambda d: d.concatenate(other),
            lambda e: e + list(range(n)),
        )

    def concatenate_self(n: int) -> Step:
        return Step(
            f"concatenate(self.skip({n}))",
            lambda d: d.concatenate(d.skip(n)),
            lambda e: e + e[n:],
        )

    def zip_range(n: int) -> Step:
        return Step(
            f"zip(self, range({n}).repeat()).map(+)",
            lambda d: Dataset.zip(d, Dataset.range(n).repeat()).map(lambda a, b: a * 3 + b),
            lambda e: [a * 3 + b for a, b in zip(e, itertools.cycle(range(n)), strict=False)],
        )

    def zip_self(n: int) -> Step:
        return Step(
            f"zip(self, self.skip({n})).map(-)",
            lambda d: Dataset.zip({"a": d, "b": (d.skip(n),)}).map(
                lambda z: z["a"] * 5 - z["b"][0]
            ),
            lambda e: [a * 5 - b for a, b in zip(e, e[n:], strict=False)],
        )

    def interleave(n: int, cycle: int, block: int) -> Step:
        return Step(
            f"interleave(x -> range(x % {n}) + x, {cycle}, {block})",
            lambda d: d.interleave(
                lambda x: Dataset.range(x % n).map(lambda y: y + x), cycle, block
            ),
            lambda e: _interleaved([[y + x for y in range(x % n)] for x in e], cycle, block),
        )

    def flat_map(n: int) -> Step:
        return Step(
            f"flat_map(x -> stream of {n}, + x)",
            lambda d: d.flat_map(lambda x: stream_of(n).map(lambda y: y + x)),
            lambda e: [y + x for x in e for y in range(n)],
        )

    def prefetch(n: int) -> Step:
        return Step(f"prefetch({n})", lambda d: d.prefetch(n), lambda e: e)

    def shuffle_one() -> Step:
        return Step("shuffle(1)", lambda d: d.shuffle(1), lambda e: e)

    def cache() -> Step:
        return Step("cache()", lambda d: d.cache(), lambda e: e)

    return st.one_of(
        st.builds(map_, small, st.sampled_from([None, None, 2])),
        st.builds(filter_, st.integers(2, 4)),
        st.builds(enumerate_, small),
        st.builds(take, small),
        st.builds(skip, small),
        st.builds(repeat, st.integers(0, 3)),
        st.builds(shard, positive, small),
        st.builds(batch_sum, positive, st.booleans()),
        st.builds(batch_unbatch, positive, st.integers(0, 2)),
        st.builds(batch_batch, positive, positive),
        st.builds(concatenate, small, st.booleans()),
        st.builds(concatenate_self, small),
        st.builds(zip_range, positive),
        st.builds(zip_self, small),
        st.builds(interleave, positive, positive, positive),
        st.builds(flat_map, st.integers(0, 3)),
        st.builds(prefetch, positive),
        st.just(shuffle_one()),
        st.just(cache()),
    )


def _random_steps() -> st.SearchStrategy[Step]:
    """Operations that draw: a shuffle, and a random map that keeps elements apart."""

    def shuffle(n: int, seed: int, reshuffle: bool) -> Step:
        return Step(f"shuffle({n}, {seed}, {reshuffle})", lambda d: d.shuffle(n, seed, reshuffle))

    def random_map(seed: int) -> Step:
        def draw(x, key):
            return x * 1000 + np.int64(jax.random.key_data(key)[-1] % 1000)

        return Step(f"random map({seed})", lambda d: d.map(draw, seed=seed))

    return st.one_of(
        st.builds(shuffle, st.integers(1, 20), small, st.booleans()),
        st.builds(random_map, small),
    )


SIZES = st.integers(0, 12)
LIMIT = 150  # repetitions of repetitions need not be looked at to their end

SOURCES = {
    "range": Dataset.range,
    "slices": lambda size: Dataset.from_tensor_slices(np.arange(size)),
    "generator": stream_of,
    "filter": lambda size: Dataset.range(size).filter(lambda x: True),
    "prefetch": lambda size: Dataset.range(size).map(lambda x: x).prefetch(2),
    "signature": lambda size: Dataset.from_generator(
        lambda: range(size), output_signature=jt.TensorSpec((), np.int32)
    ).map(np.int64),
}


def build(source: str, size: int, steps: list[Step]) -> jt.data.Dataset:
    dataset = SOURCES[source](size)
    for step in steps:
        dataset = step.on_dataset(dataset)
    return dataset


def model(size: int, steps: list[Step]) -> list[int]:
    elements = list(range(size))
    for step in steps:
        elements = step.on_list(elements)[:5000]
    return elements


class TestTheModel:
    """Every source, any chain: what plain Python says."""

    @pytest.mark.parametrize("source", SOURCES)
    @given(size=SIZES, steps=st.lists(_steps(), max_size=5))
    @settings(max_examples=80)
    def test_elements(self, source, size, steps):
        expected = model(size, steps)
        dataset = build(source, size, steps)
        assert read(dataset, LIMIT) == expected[:LIMIT]
        assert read(dataset, LIMIT) == expected[:LIMIT], "the second pass"

    @given(size=SIZES, steps=st.lists(_steps(), max_size=5))
    @settings(max_examples=100)
    def test_sizes_that_are_told_are_right(self, size, steps):
        expected = len(model(size, steps))
        if expected == 5000:
            return
        for source in ("range", "generator"):
            told = build(source, size, steps).cardinality()
            assert told in (expected, jt.data.UNKNOWN_CARDINALITY)

    @given(size=SIZES, steps=st.lists(_steps(), max_size=4), data=st.data())
    @settings(max_examples=100)
    def test_shards_add_up_to_the_whole(self, size, steps, data):
        expected = model(size, steps)[:LIMIT]
        shards = data.draw(st.integers(1, 4))
        source = data.draw(st.sampled_from(sorted(SOURCES)))
        dataset = build(source, size, steps).take(LIMIT)
        parts = [read(dataset.shard(shards, index)) for index in range(shards)]
        assert parts == [expected[index::shards] for index in range(shards)]


class TestExecution:
    """Tables and streams are two ways to read the same dataset."""

    @given(size=SIZES, steps=st.lists(st.one_of(_steps(), _random_steps()), max_size=5))
    @settings(max_examples=120)
    def test_random_pipelines_agree(self, size, steps):
        passes = []
        for source in ("range", "generator"):
            dataset = build(source, size, steps)
            passes.append([read(dataset, LIMIT) for _ in range(2)])
        assert passes[0] == passes[1]

    @given(
        size=SIZES,
        steps=st.lists(st.one_of(_steps(), _random_steps()), max_size=5),
        source=st.sampled_from(sorted(SOURCES)),
        position=st.integers(0, 30),
        first_pass=st.integers(0, 1),
    )
    @settings(max_examples=150)
    def test_random_pipelines_resume(self, size, steps, source, position, first_pass):
        dataset = build(source, size, steps)
        for _ in range(first_pass):
            read(dataset, LIMIT)
        with contextlib.closing(iter(dataset)) as iterator:
            before = rest(iterator, position)
            state = saved(iterator)
            left = rest(iterator, LIMIT)
            iterator.set_state(state)
            assert rest(iterator, LIMIT) == left, f"the same iterator, after {before}"
        with contextlib.closing(iter(build(source, size, steps))) as fresh:
            fresh.set_state(state)
            assert rest(fresh, LIMIT) == left, f"a fresh iterator, after {before}"

    @given(
        size=SIZES,
        window=st.integers(1, 15),
        repeat=st.integers(1, 3),
        batch=st.integers(1, 7),
        seed=small,
    )
    @settings(max_examples=60)
    def test_every_epoch_of_a_training_pipeline_is_complete(
        self, size, window, repeat, batch, seed
    ):
        for source in (Dataset.range, stream_of):
            dataset = source(size).shuffle(window, seed).repeat(repeat).batch(batch)
            delivered = list(itertools.chain(*read(dataset)))
            epochs = _batches(delivered, size) if size else []
            assert [sorted(epoch) for epoch in epochs] == [list(range(size))] * len(epochs)
            assert len(epochs) == (repeat if size else 0)
            for epoch in epochs:
                for number, part in enumerate(_batches(epoch, window)):
                    assert sorted(part) == list(
                        range(number * window, min(size, (number + 1) * window))
                    )


class TestStructures:
    @given(
        size=st.integers(1, 9),
        batch=positive,
        nested=st.recursive(
            st.sampled_from(["number", "vector", "text", "flag"]),
            lambda inner: st.one_of(
                st.tuples(inner, inner), st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
            ),
            max_leaves=5,
        ),
    )
    @settings(max_examples=60)
    def test_batches_of_any_structure_come_apart_again(self, size, batch, nested):
        def element(x: int) -> Any:
            return _leaves(nested, x)

        made = [element(x) for x in range(size)]
        mapped = Dataset.range(size).map(lambda x: element(int(x)))
        streamed = Dataset.from_generator(lambda: iter(made))
        expected = [plain(_leaves(nested, x, as_numpy=True)) for x in range(size)]
        for dataset in (mapped, streamed):
            assert read(dataset) == expected
            assert read(dataset.batch(batch).unbatch()) == expected
            assert read(dataset.cache().shuffle(1).batch(batch)) == read(dataset.batch(batch))


def _leaves(nested: Any, x: int, as_numpy: bool = False) -> Any:
    if isinstance(nested, tuple):
        return tuple(_leaves(part, x, as_numpy) for part in nested)
    if isinstance(nested, dict):
        return {key: _leaves(part, x, as_numpy) for key, part in nested.items()}
    return {
        "number": x,
        "vector": np.arange(x, x + 3),
        "text": f"é{x}".encode() if as_numpy else f"é{x}",
        "flag": x % 2 == 0,
    }[nested]
