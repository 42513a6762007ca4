"""Random cases: a Hypothesis strategy biased to boundaries, and its use without a test."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, configuration, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from packproof.properties.cases.case import Case
from packproof.properties.cases.layouts import (
    layouts,
    segment_layouts,
)
from packproof.properties.cases.space import Space

_ONE_LONG_CASE_IN = 16  # it costs the reference seconds


@st.composite
def cases(draw: st.DrawFn, space: Space) -> Case:
    """Draw a case: small plain data; tensors come from its seed."""
    # == the largest: Hypothesis shrinks an integer to the smallest, hence to a short case
    if space.segment_layouts and draw(st.integers(1, _ONE_LONG_CASE_IN)) == _ONE_LONG_CASE_IN:
        size = dict(draw(st.sampled_from(space.plain_sizes)))
        lengths = draw(segment_layouts(space.promises.handover))
    else:
        size = dict(draw(st.sampled_from(space.sizes)))
        lengths = draw(layouts(space.chunk, space.width(size), space.max_tokens))
    options = {n: draw(st.sampled_from(v)) for n, v in space.drawn_options.items()}
    forms = {n: draw(st.integers(0, count - 1)) for n, count in space.form_counts.items()}
    key_patterns = st.none() | st.integers(0, 5)
    key_pattern = draw(key_patterns) if space.packs_keys else None
    floats = draw(st.sampled_from(space.float32_sets)) if len(space.float32_sets) > 1 else ()
    narrow = draw(st.sampled_from(space.narrow_sets)) if len(space.narrow_sets) > 1 else ()
    present = tuple(n for n in space.optional_inputs if draw(st.booleans()))
    return Case(
        lengths=lengths,
        dtype=space.dtype,
        sizes=tuple(size.items()),
        slack=draw(st.sampled_from(space.slack_counts)),
        present=present,
        float32=space.passed(present, floats),
        narrow=space.passed(present, narrow),
        axes=tuple((n, forms[space.form_source(n)]) for n in space.form_counts),
        options=space.known_options(options),
        regime=draw(st.sampled_from(space.regimes)),
        seed=draw(st.integers(0, 3)),
        key_lengths=space.key_lengths(lengths, key_pattern),
    )


def random_cases(space: Space, count: int, seed: int) -> list[Case]:
    """Up to `count` cases from Hypothesis's generation phase. The same seed gives the same cases.

    Each is moved into the kernel's domain, or omitted where no case is near.
    """
    drawn_cases: list[Case] = []
    if count <= 0 or not space.plain_sizes:
        return drawn_cases

    @with_seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases(space))
    def collect(case: Case) -> None:
        drawn_cases.extend(filter(None, [space.fit(case)]))

    with _without_hypothesis_storage(), _without_constant_parsing():
        collect()
    return list(dict.fromkeys(drawn_cases)) if space.domain else drawn_cases


@contextmanager
def _without_hypothesis_storage() -> Iterator[None]:
    """Keep Hypothesis from creating its cache, `.hypothesis/`, in the user's folder.

    An existing cache, or a folder set by the user, is used.
    """
    user_directory = vars(configuration).get("__hypothesis_home_directory") or os.environ.get(
        "HYPOTHESIS_STORAGE_DIRECTORY"
    )
    if user_directory or Path(".hypothesis").exists():
        yield
        return
    configuration.set_hypothesis_home_dir(os.devnull)  # where no folder can be made, Hypothesis does without
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(None)


@contextmanager
def _without_constant_parsing() -> Iterator[None]:
    """Keep Hypothesis from parsing every loaded module for constants to draw.

    Parsing takes half a second in each process, and the cases of a seed would depend on the imported modules.
    """
    providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
    get_local_constants = getattr(providers, "_get_local_constants", None)
    if get_local_constants is None:  # a version that does not do so
        yield
        return
    no_constants = providers._local_constants
    providers._get_local_constants = lambda: no_constants
    try:
        yield
    finally:
        providers._get_local_constants = get_local_constants
