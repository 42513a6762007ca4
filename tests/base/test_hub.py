"""Kernels of the Hugging Face kernel hub: the folder and the build that a name leads to, and their import."""

import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from packproof.adapters import adapt
from packproof.base.errors import UsageError
from packproof.base.hub.build_variants import Machine, preference, this_machine, variant_file
from packproof.base.hub.loading import import_kernel
from packproof.base.hub.repositories import cache_folder
from packproof.base.names import TARGET_PREFIX
from packproof.harness.process.naming import Location, missing_target_reason
from tests.base.hub_kernels import write_build, write_cached

CUDA = Machine((2, 13), "130", "", "x86_64-linux")
CPU = Machine((2, 13), "", "", "x86_64-linux")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KERNELS_CACHE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(TARGET_PREFIX):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"KERNELS_CACHE": "/k", "HF_HOME": "/h"}, "/k"),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_cache_is_where_the_hub_keeps_it(environment: dict[str, str], folder: str) -> None:
    assert str(cache_folder(environment)) == folder


@pytest.mark.parametrize("kind", ["kernels", "models"])
def test_a_cached_kernel_is_found_by_its_name(cache: Path, kind: str) -> None:
    snapshot = write_cached(cache, kind)
    assert variant_file("hub:owner/conv-kernel") == snapshot / "build/torch-universal/__init__.py"


def test_the_highest_version_is_taken_unless_a_revision_is_named(cache: Path) -> None:
    old, new = write_cached(cache, commit="aa11", reference="v9"), write_cached(cache, commit="bb22", reference="v10")
    main = write_cached(cache, commit="cc33", reference="main")
    for revision, snapshot in {"": new, "@v9": old, "@main": main, "@bb22": new, "@cc": main}.items():
        assert variant_file(f"hub:owner/conv-kernel{revision}").is_relative_to(snapshot), revision


def test_the_cache_is_searched_and_nothing_else(cache: Path) -> None:
    with pytest.raises(UsageError) as caught:
        variant_file("hub:owner/conv-kernel")
    text = str(caught.value)
    assert f"searched {cache}/kernels--owner--conv-kernel and {cache}/models--owner--conv-kernel" in text
    assert "packproof downloads nothing" in text
    assert "kernels.install_kernel('owner/conv-kernel', version=1)" in text


def test_a_revision_that_is_not_there_is_answered_by_those_that_are(cache: Path) -> None:
    write_cached(cache, commit="aa11", reference="v1")
    with pytest.raises(UsageError, match=r"revision v2 of it is not in .*; there are aa11, v1\n.*version=2\)"):
        variant_file("hub:owner/conv-kernel@v2")


@pytest.mark.parametrize("source", ["hub:", "hub:kernel", "hub:a/b/c", "hub:owner/ker nel"])
def test_another_form_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match=r"expected hub:owner/kernel, hub:owner/kernel@revision, or hub:\./folder"):
        variant_file(source)


@pytest.mark.parametrize("name", ["repository", "repository/build", "repository/build/torch-universal"])
@pytest.mark.parametrize("package", ["", "conv_kernel"])
def test_a_folder_may_be_the_repository_its_builds_or_one_build(working_folder: Path, name: str, package: str) -> None:
    folder = write_build(working_folder / "repository/build/torch-universal", package)
    assert variant_file(f"hub:./{name}") == folder / "__init__.py"
    assert variant_file(f"hub:{working_folder}/{name}") == folder / "__init__.py"


def test_the_builds_that_do_not_fit_are_listed(working_folder: Path) -> None:
    write_build(working_folder / "repository/build/torch19-cxx98-cu102-x86_64-linux")
    with pytest.raises(UsageError) as caught:
        variant_file("hub:./repository")
    assert f"no build in {working_folder}/repository/build is for {this_machine()}; there are torch19-cxx98" in str(
        caught.value
    )
    (working_folder / "empty").mkdir()
    with pytest.raises(UsageError, match=r"there are none; its folders would be called torch-universal or similar"):
        variant_file("hub:./empty")


def test_this_machine_is_that_of_torch() -> None:
    machine = this_machine()
    assert machine.torch == tuple(map(int, torch.__version__.split(".")[:2]))
    assert machine.cuda == (torch.version.cuda or "").replace(".", "")


@pytest.mark.parametrize(
    ("machine", "names"),  # from the least to the most wanted
    [
        (
            CUDA,
            [
                "torch-universal",
                "torch-cuda",
                "torch213-cxx11-cu130-x86_64-linux",
                "torch-stable-abi29-cu130-x86_64-linux",
                "torch-stable-abi213-cu130-x86_64-linux",
            ],
        ),
        (CPU, ["torch-cuda", "torch-universal", "torch-cpu", "torch213-cxx11-cpu-x86_64-linux"]),
        (Machine((2, 13), "", "72", "x86_64-linux"), ["torch-rocm", "torch213-cxx11-rocm72-x86_64-linux"]),
        (
            Machine((2, 13), "132", "", "aarch64-linux"),
            ["torch213-cu130-aarch64-linux", "torch213-cu132-aarch64-linux"],
        ),
    ],
)
def test_the_build_that_fits_best_is_taken(machine: Machine, names: list[str]) -> None:
    ranks = [preference(name, machine) for name in names]
    assert all(ranks)
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


@pytest.mark.parametrize(
    "name",
    [
        "torch212-cxx11-cu130-x86_64-linux",  # another torch
        "torch214-cxx11-cu130-x86_64-linux",
        "torch-stable-abi214-cu130-x86_64-linux",
        "torch213-cxx98-cu130-x86_64-linux",  # another C++
        "torch213-cxx11-cu128-x86_64-linux",  # another CUDA
        "torch213-cxx11-cu132-x86_64-linux",
        "torch213-cxx11-cpu-x86_64-linux",
        "torch213-cxx11-rocm72-x86_64-linux",
        "torch213-cxx11-cu130-aarch64-linux",  # another machine
        "torch213-metal-aarch64-darwin",
        "torch-rocm",
        "torch-metal",
        "torch-ext",
        "conv_kernel",
    ],
)
def test_a_build_that_does_not_fit_is_not_taken(name: str) -> None:
    assert preference(name, CUDA) == ()


def test_a_kernel_is_imported_with_its_relative_imports_and_once(working_folder: Path) -> None:
    write_build(working_folder / "repository/build/torch-universal")
    module = import_kernel("hub:./repository")
    assert module.conv.__module__.endswith("._ops")
    assert import_kernel("hub:./repository") is module
    assert Location.parse("hub:./repository:conv").load() is module.conv
    assert Location.parse("hub:./repository::conv").load() is module.conv
    assert adapt("hub:./repository:conv", op="causal_conv1d").function is module.conv


def test_its_module_is_named_after_the_repository(cache: Path, working_folder: Path) -> None:
    write_cached(cache)
    write_build(working_folder / "my-kernel/build/torch-universal")
    write_build(working_folder / "loose")
    for source, name in (("owner/conv-kernel", "conv_kernel"), ("./my-kernel", "my_kernel"), ("./loose", "loose")):
        module = import_kernel(f"hub:{source}")
        assert re.fullmatch(rf"{TARGET_PREFIX}{name}_[0-9a-f]{{8}}\._ops", module.conv.__module__)


def test_two_kernels_of_one_name_are_two(working_folder: Path) -> None:
    for folder in ("a", "b"):
        write_build(working_folder / folder / "build/torch-universal")
    assert import_kernel("hub:./a").conv is not import_kernel("hub:./b").conv


def test_one_that_cannot_be_imported_is_no_module(working_folder: Path) -> None:
    folder = write_build(working_folder / "repository/build/torch-universal")
    (folder / "layers.py").write_text("import nothing_of_that_name")
    for _ in range(2):
        with pytest.raises(
            UsageError, match=r"torch-universal cannot be imported: ModuleNotFoundError.* \(layers.py:1\)"
        ):
            Location.parse("hub:./repository:conv").load()


def test_the_library_of_the_hub_imports_it_where_that_is_installed(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_build(working_folder / "repository/build/torch-universal")
    constants = SimpleNamespace(HF_HUB_OFFLINE=False)
    calls = []

    def get_local_kernel(path: Path) -> ModuleType:
        calls.append((path, constants.HF_HUB_OFFLINE))
        return ModuleType("of_the_library")

    library = ModuleType("kernels")
    library.__spec__ = ModuleSpec("kernels", None, origin="kernels/__init__.py")
    library.get_local_kernel = get_local_kernel
    hub = ModuleType("huggingface_hub")
    hub.__spec__ = ModuleSpec("huggingface_hub", None, origin="huggingface_hub/__init__.py")
    hub.constants = constants
    monkeypatch.setitem(sys.modules, "kernels", library)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert import_kernel("hub:./repository").__name__ == "of_the_library"
    assert calls == [(folder, True)]
    assert constants.HF_HUB_OFFLINE is False


def test_a_module_of_the_users_with_the_name_of_the_library_is_not_it(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_build(working_folder / "repository/build/torch-universal")
    for name in ("kernels", "huggingface_hub"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, origin=f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
    assert callable(import_kernel("hub:./repository").conv)


def test_its_functions_are_named(working_folder: Path) -> None:
    write_build(working_folder / "repository/build/torch-universal")
    with pytest.raises(UsageError, match=r"which function\? In it there are: hub:\./repository:conv$"):
        Location.parse("hub:./repository")
    assert missing_target_reason("hub:./repository:conv") == ""
    assert (
        missing_target_reason("hub:./repository:rope")
        == "target 'hub:./repository:rope': hub:./repository defines no rope"
    )
    assert missing_target_reason("hub:./other:conv").startswith("target hub:./other: there is no folder")
