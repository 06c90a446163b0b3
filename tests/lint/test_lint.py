"""The lint checks: this tree passes them, and each check finds the violations that it is written for."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import check_cuda
import check_imports
import check_layers
import check_lengths
import check_paths
from tree import root_of_this_tree

TABLE = """
# map
## Layers
| layer | what |
|---|---|
| `base` | errors |
| `store` · `topology` | rendezvous, places |
| `plan` | data; may include `base` and `topology` only. |
| `comm` | all of it |

### Inside a layer
| layer | order |
|---|---|
| `comm` | `flight` < `device` and `nccl` < `cuda` · `window` |

### Headers for other layers
| layer | headers |
|---|---|
| `store` | `store/internal.hpp`, `store/keys/text.hpp` |

### The Python package
| module | what |
|---|---|
| `_core` | compiled |
| `plan` · `texts` | |
| `accord` | names |
| `torch` · `mesh` | |
| `jit` | may import `_core` only. |

### Others
| other table | `comm` |
|---|---|
| `store` | is no layer row |
"""


@pytest.fixture
def tree(tmp_path: Path):
    """A function that creates a small tree of the given files, with the layer table above."""

    def make(files: dict[str, str]) -> Path:
        for name, text in {"docs/architecture.md": TABLE, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    "check", [check_cuda, check_imports, check_layers, check_lengths, check_paths], ids=lambda check: check.__name__
)
def test_this_tree_passes(check):
    assert check.violations(root_of_this_tree()) == []


def test_the_table_gives_each_layer_the_layers_above_it():
    assert check_layers.allowed_includes(check_layers.section(TABLE, "Layers")) == {
        "base": {"base"},
        "store": {"store", "base"},
        "topology": {"topology", "base"},
        "plan": {"plan", "base", "topology"},
        "comm": {"comm", "base", "store", "topology", "plan"},
    }


def test_includes_upwards_are_allowed(tree):
    root = tree(
        {
            "src/comm/a.cpp": '#include <memory>\n#include "accord/b.hpp"\n#include "plan/p.hpp"\n#include "comm/x.hpp"\n',
            "include/accord/b.hpp": '#include "accord/c.hpp"\n#include <string>\n',
        }
    )
    assert check_layers.violations(root) == []


@pytest.mark.parametrize(
    ("file", "include", "message"),
    [
        ("src/base/a.cpp", '#include "comm/x.hpp"', "base includes comm/x.hpp"),
        ("src/store/a.cpp", '  #  include "topology/x.hpp"', "store includes topology/x.hpp"),
        ("src/plan/deep/a.hpp", "#include <store/x.hpp>", "plan includes store/x.hpp; it may include base, topology"),
        ("include/accord/a.hpp", '#include "base/x.hpp"', "a public header includes base/x.hpp"),
        ("src/comm/a.cpp", '#include "../base/x.hpp"', "not a path from src/ or include/"),
        ("src/extra/a.cpp", "int a;", "src/extra is not in the layer table"),
    ],
)
def test_an_include_against_the_order_of_layers_is_reported(tree, file, include, message):
    found = check_layers.violations(tree({file: f"// text\n{include}\n"}))
    assert len(found) == 1
    assert found[0].startswith(file)
    assert message in found[0]


def test_the_table_gives_each_folder_of_a_layer_the_folders_before_it():
    assert check_layers.inner_orders(check_layers.section(TABLE, "Inside a layer")) == {
        "comm": {
            "flight": {"flight"},
            "device": {"flight", "device", "nccl"},
            "nccl": {"flight", "device", "nccl"},
            "cuda": {"flight", "device", "nccl", "cuda"},
            "window": {"flight", "device", "nccl", "window"},
        }
    }


def test_includes_of_earlier_folders_are_allowed(tree):
    text = '#include "comm/flight/a.hpp"\n#include "comm/nccl/a.hpp"\n#include "comm/a.hpp"\n'
    files = {f"src/comm/{place}": text for place in ("a.cpp", "device/a.cpp", "nccl/deep/a.cpp", "window/a.cpp")}
    assert check_layers.violations(tree(files)) == []


@pytest.mark.parametrize(
    ("file", "include", "message"),
    [
        (
            "src/comm/flight/a.cpp",
            '#include "comm/window/x.hpp"',
            "comm/flight includes comm/window/x.hpp; it may include no",
        ),
        ("src/comm/cuda/a.cpp", '#include "comm/window/deep/x.hpp"', "it may include device, flight, nccl"),
        ("src/comm/nccl/a.cpp", '#include "comm/cuda/x.hpp"', "comm/nccl includes comm/cuda/x.hpp"),
        ("src/comm/extra/a.cpp", "int a;", 'folder src/comm/extra is not in the table "Inside a layer"'),
    ],
)
def test_an_include_against_the_order_of_folders_is_reported(tree, file, include, message):
    (found,) = check_layers.violations(tree({file: f"// text\n{include}\n"}))
    assert found.startswith(file)
    assert message in found


def test_headers_for_other_layers_may_be_included(tree):
    text = '#include "store/internal.hpp"\n#include "store/keys/text.hpp"\n#include "topology/any.hpp"\n'
    files = {"src/comm/a.cpp": text, "bindings/a.cpp": text, "src/store/a.cpp": '#include "store/other.hpp"\n'}
    assert check_layers.violations(tree(files)) == []


@pytest.mark.parametrize("file", ["src/comm/a.hpp", "src/comm/window/a.cpp", "bindings/a.cpp", "bindings/deep/a.hpp"])
def test_an_include_of_a_header_that_is_not_for_other_layers_is_reported(tree, file):
    (found,) = check_layers.violations(tree({file: '#include "store/internal.hpp"\n#include "store/other.hpp"\n'}))
    assert found.startswith(f"{file}:2: ")
    assert "includes store/other.hpp; of store it may include only store/internal.hpp, store/keys/text.hpp" in found


PYTHON = {
    "__init__.py": "from accord import plan\nfrom accord._core import Error\n",
    "plan.py": "import json\nfrom accord import _core\nif TYPE_CHECKING:\n    from accord.torch.groups import Group\n",
    "torch/__init__.py": "from accord.torch.groups import Group\n",
    "torch/groups.py": "import accord\nfrom accord import Error, plan\nfrom . import work\n",
    "torch/work.py": "def f():\n    from ..plan import step\n",
}


def python(files: dict[str, str]) -> dict[str, str]:
    return {f"python/accord/{name}": text for name, text in {**PYTHON, **files}.items()}


def test_imports_upwards_without_a_circle_are_allowed(tree):
    assert check_imports.violations(tree(python({}))) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "plan.py",
            "def f():\n    import accord.texts\n",
            "2: accord.plan imports accord.texts; plan may import _core",
        ),
        ("torch/a.py", "from accord.mesh.grid import Grid\n", "1: accord.torch.a imports accord.mesh.grid; torch may"),
        ("mesh/grid.py", "try:\n    from accord import jit\nexcept: pass\n", "2: accord.mesh.grid imports accord.jit;"),
        ("jit/a.py", "from accord import info\n", "1: accord.jit.a imports accord; jit may import _core"),
    ],
)
def test_an_import_against_the_order_of_the_python_package_is_reported(tree, file, text, message):
    others = {"texts.py": "", "mesh/grid.py": "", "jit/__init__.py": ""}
    (found,) = check_imports.violations(tree(python({**others, file: text})))
    assert found.startswith(f"python/accord/{file}:{message}")


def test_a_module_outside_the_table_is_reported(tree):
    found = check_imports.violations(tree(python({"extra/a.py": "from accord import plan\n"})))
    assert found == ["accord.extra.a: extra is not in the table of the Python package of docs/architecture.md"]


def test_a_circle_of_imports_is_reported_with_its_modules(tree):
    found = check_imports.violations(
        tree(
            python(
                {
                    "torch/work.py": "def f():\n    import accord.torch.tensors\n",
                    "torch/tensors.py": "from .groups import Group\n",
                }
            )
        )
    )
    assert found == [
        "circle: accord.torch.groups imports accord.torch.work (python/accord/torch/groups.py:3), "
        "accord.torch.work imports accord.torch.tensors (python/accord/torch/work.py:2), "
        "accord.torch.tensors imports accord.torch.groups (python/accord/torch/tensors.py:1)"
    ]


@pytest.mark.parametrize(
    "include",
    [
        "<cuda_runtime_api.h>",
        "<cublasLt.h>",
        '"cuda.h"',
        "<nccl.h>",
        "<cub/cub.cuh>",
        "<cooperative_groups.h>",
        "<cuda/atomic>",
    ],
)
def test_a_cuda_header_belongs_in_a_folder_named_cuda(tree, include):
    text = f"// text\n  # include {include}\n"
    inside = {"src/base/cuda/a.cpp": text, "src/base/cuda/deep/b.cu": text, "tests/unit/base/cuda/c.hpp": text}
    assert check_cuda.violations(tree(inside)) == []
    found = check_cuda.violations(tree({"src/base/cuda.cpp": text}))
    assert [line.split(": ")[0] for line in found] == ["src/base/cuda.cpp:2"]


@pytest.mark.parametrize(
    "include", ["<vector>", '"base/cuda/a.hpp"', '"comm/nccl/library.hpp"', '"device/nccl_abi.hpp"']
)
def test_other_headers_are_allowed_anywhere(tree, include):
    assert check_cuda.violations(tree({"src/comm/a.cpp": f"#include {include}\n"})) == []


@pytest.mark.parametrize("place", ["work/main", "root/.cache", "home/someone/x", "tmp/x.bin", "opt/wheels"])
def test_a_path_of_one_machine_is_reported(tree, place):
    found = check_paths.violations(tree({"scripts/x": f"first\ncd /{place}\n"}))
    assert [line.split(": ")[0] for line in found] == ["scripts/x:2"]


@pytest.mark.parametrize(
    "text", ["$ROOT/work/x", "../tmp/x", "file:///tmp/x", "homework/root/x", "a /workspace", "/usr/lib"]
)
def test_other_paths_are_allowed(tree, text):
    assert check_paths.violations(tree({"a.txt": text})) == []


def test_a_long_file_needs_a_reason_and_a_reason_needs_a_long_file(tree):
    root = tree({"src/base/long.cpp": "int a;\n" * 401, "src/base/short.cpp": "int a;\n" * 400})
    assert len(check_lengths.violations(root)) == 1
    (root / "tests/lint").mkdir(parents=True)
    (root / check_lengths.LIST).write_text("# why\nsrc/base/long.cpp: a table\n")
    assert check_lengths.violations(root) == []
    (root / "src/base/long.cpp").write_text("int a;\n")
    assert check_lengths.violations(root) == [f"{check_lengths.LIST}: src/base/long.cpp is not over 400 lines"]
