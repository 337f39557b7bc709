"""The simulated device: one load for the whole process, as its backend can have its name only once."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from utils import simdev
from utils.catalog import read
from utils.hardware import cpp_compiler, probe
from utils.paths import NOTEBOOKS, ROOT

if probe().no_compile:
    pytest.skip(f"no simulated device: {probe().no_compile}", allow_module_level=True)
if simdev._ninja() is None:
    pytest.skip("no simulated device: no ninja (pip install ninja)", allow_module_level=True)

import torch
import torch.nn.functional as F
from torch import nn

Graph = torch.accelerator.Graph


@pytest.fixture(scope="module", autouse=True)
def device() -> torch.device:
    return simdev.load()


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No test may leave a stream that captures, or memory that nobody holds."""
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved()
    yield
    torch.accelerator.empty_cache()
    assert not torch.accelerator.current_stream().is_capturing()
    assert torch.accelerator.memory_reserved() <= before


def capture(fn: Callable[[], Any], **options: Any) -> tuple[Graph, Any]:
    graph = Graph(**options)
    with torch.Stream(), graph:
        result = fn()
    return graph, result


def ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="sim")


# ---------------------------------------------------------------------------------------------------------- the build


@pytest.mark.slow
def test_the_compiler_finds_nothing_to_warn_of() -> None:
    cpp = simdev._cpp_extension()
    headers = [flag for path in cpp.include_paths("cpu") for flag in ("-isystem", path)]
    command = [cpp_compiler(), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *headers, simdev.SOURCE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, utils.simdev; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simdev, "cpp_compiler", lambda: None)
    with pytest.raises(simdev.BuildError, match="needs a C\\+\\+ compiler: install"):
        simdev.build()


def test_without_ninja_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simdev, "_ninja", lambda: None)
    with pytest.raises(simdev.BuildError, match="pip install ninja"):
        simdev.build()


def test_what_the_compiler_says_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("int main() { return nonsense; }")
    monkeypatch.setattr(simdev, "SOURCE", broken)
    with pytest.raises(simdev.BuildError, match="nonsense"):
        simdev.build(tmp_path / "out")


def test_a_folder_that_cannot_be_written_gives_way_to_a_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    place = simdev._writable(tmp_path / "file" / "simdev")
    assert place.is_dir() and tmp_path not in place.parents
    assert simdev._writable(tmp_path / "new") == tmp_path / "new"
    place.rmdir()


def test_loading_twice_is_loading_once(device: torch.device) -> None:
    assert simdev.load() is device
    assert torch.accelerator.current_accelerator(check_available=True).type == "sim"


def test_the_notebook_quotes_the_source() -> None:
    source = simdev.SOURCE.read_text("utf-8")
    cells = read(NOTEBOOKS / "04_accelerator_graph.ipynb").cells
    quotes = [q for c in cells for q in re.findall(r"```cpp\n(.*?)```", c.source, re.DOTALL)]
    pieces = [p.strip("\n") for quote in quotes for p in re.split(r"(?m)^ *// …\n", quote)]
    assert quotes
    assert [piece for piece in pieces if piece not in source] == []


# ------------------------------------------------------------------------------------------------------ the operators

X = torch.linspace(-2, 2, 24).reshape(4, 6)
IMAGE = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8).sin()
OPERATORS = {
    "matmul": lambda x, image: x @ x.mT,
    "broadcast": lambda x, image: x + x[:1] * 2 - 1,
    "softmax": lambda x, image: x.softmax(-1),
    "cat": lambda x, image: torch.cat([x, x * 2]),
    "index": lambda x, image: x[torch.ones(3, dtype=torch.long, device=x.device)],
    "in place": lambda x, image: x.clone().mul_(2).add_(x),
    "several results": lambda x, image: x.sort(dim=1).values,
    "slice": lambda x, image: x.clone()[:, 1:].mT.contiguous(),
    "set a part": lambda x, image: torch.zeros_like(x).index_fill_(0, torch.ones(1, device=x.device).long(), 5.0),
    "scalar tensor": lambda x, image: x * torch.tensor(3.0),
    "out=": lambda x, image: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "reduced out=": lambda x, image: F.mse_loss(x, x * 2),
    "half precision": lambda x, image: (x.bfloat16() @ x.bfloat16().mT).float(),
    "foreach": lambda x, image: torch._foreach_add([x, x], 1.0)[1],
    "norm": lambda x, image: F.layer_norm(x, (6,)),
    "conv": lambda x, image: F.conv2d(image, image[:, :, :3, :3], padding=1),
    "attention": lambda x, image: F.scaled_dot_product_attention(image, image, image),
    "inverse": lambda x, image: torch.linalg.inv_ex(x @ x.mT + torch.eye(4, device=x.device)).inverse,
    "complex": lambda x, image: torch.view_as_real(torch.complex(x, x)),
    "unfold": lambda x, image: x.unfold(1, 3, 1) * 1,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_agree_with_the_cpu_eagerly_and_replayed(name: str) -> None:
    fn = OPERATORS[name]
    x, image = X.to("sim"), IMAGE.to("sim")
    assert torch.allclose(fn(x, image).cpu(), fn(X, IMAGE), atol=1e-5)
    graph, result = capture(lambda: fn(x, image))
    x.copy_(X + 1)
    image.copy_(IMAGE * 2)
    graph.replay()
    assert torch.allclose(result.cpu(), fn(X + 1, IMAGE * 2), atol=1e-5)


def test_shapes_that_depend_on_data_work_eagerly() -> None:
    assert (X.to("sim") > 0).nonzero().cpu().equal((X > 0).nonzero())


def test_gradients_agree_with_the_cpu() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 2))
    twin = copy.deepcopy(net).to("sim")
    F.cross_entropy(net(IMAGE), torch.tensor([0, 1])).backward()
    F.cross_entropy(twin(IMAGE.to("sim")), torch.tensor([0, 1], device="sim")).backward()
    for mine, theirs in zip(twin.parameters(), net.parameters(), strict=True):
        assert torch.allclose(mine.grad.cpu(), theirs.grad, atol=1e-5)


def test_resize_keeps_what_was_there() -> None:
    x = torch.arange(4.0).to("sim")
    assert x.resize_(2, 3).flatten()[:4].tolist() == [0, 1, 2, 3]


def test_a_view_that_nobody_registered_is_refused() -> None:
    with pytest.raises(RuntimeError, match="aten::_sparse_broadcast_to returns a view; register it"):
        torch.ops.aten._sparse_broadcast_to(ones(2), [2, 2])


def test_launches_are_counted_and_traced_in_simulated_time() -> None:
    x = ones(250_000)  # a megabyte
    before = simdev.launches()
    with simdev.trace(launch_us=5) as spans:
        y = x + 1
        y.mul_(2)
    assert simdev.launches() == before + 2
    expected = [("launch", 0, 5), ("add", 5, 8), ("launch", 5, 10), ("mul", 10, 13)]
    assert [(name, round(begin, 6), round(end, 6)) for name, begin, end in spans] == expected
    with simdev.trace(launch_us=1) as spans:
        x + 1
        x + 1  # launched while the first one runs
    assert [round(end) for name, _, end in spans if name == "add"] == [4, 7]


def test_events_measure_simulated_time() -> None:
    x = ones(250_000)
    begin, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    torch.accelerator.synchronize()
    begin.record()
    x + 1
    x + 1
    end.record()
    assert begin.elapsed_time(end) == pytest.approx(0.023)


# ---------------------------------------------------------------------------------------------------------- the graph


def test_nothing_runs_until_the_replay_and_each_replay_is_one_launch() -> None:
    x = ones(3)
    before = simdev.launches()
    graph, y = capture(lambda: x * 2 + 1)
    assert simdev.launches() == before
    assert y.isnan().all()
    before = simdev.launches()
    graph.replay()
    assert simdev.launches() == before + 1
    assert y.tolist() == [3, 3, 3]
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11, 11, 11]


def test_only_the_capturing_stream_is_capturing() -> None:
    stream, other, graph, x = torch.Stream(), torch.Stream(), Graph(), ones(1)
    seen = [stream.is_capturing()]
    with stream, graph:
        seen += [stream.is_capturing(), torch.accelerator.current_stream().is_capturing(), other.is_capturing()]
        with other:
            x += 1  # runs now
    seen += [stream.is_capturing()]
    assert seen == [False, True, True, False, False]
    assert x.item() == 2


def test_values_of_the_host_are_baked_in() -> None:
    rate, x = torch.tensor(2.0), ones(1)
    graph, y = capture(lambda: x * rate)
    rate.fill_(7)
    graph.replay()
    assert y.item() == 2


REFUSED = {
    ".item()": lambda x: x.sum().item(),
    "a copy to the host": lambda x: x.cpu(),
    "a copy from the host": lambda x: x.copy_(torch.zeros(3)),
    "synchronize()": lambda x: torch.accelerator.synchronize(),
    "stream.synchronize()": lambda x: torch.accelerator.current_stream().synchronize(),
    "aten::nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured_says_so_and_leaves_the_stream_clean(what: str) -> None:
    x, graph, stream = ones(3), Graph(), torch.Stream()
    reserved = torch.accelerator.memory_reserved()
    with pytest.raises(RuntimeError, match=re.escape(f"simdev: {what}") + ".* cannot be captured"):
        with stream, graph:
            x.add(1)
            REFUSED[what](x)
    assert not stream.is_capturing()
    assert torch.accelerator.memory_reserved() == reserved
    with pytest.raises(RuntimeError, match=re.escape(f"its capture failed, at {what}")):
        graph.replay()
    with stream, graph:  # the same graph, again
        y = x + 1
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_an_error_of_python_leaves_the_stream_clean() -> None:
    stream, graph = torch.Stream(), Graph()
    with pytest.raises(ZeroDivisionError), stream, graph:
        1 / 0  # noqa: B018
    assert not stream.is_capturing()


def test_the_default_stream_is_refused() -> None:
    with pytest.raises(RuntimeError, match="default stream"), Graph():
        pass


def test_two_captures_at_once_are_refused() -> None:
    one, two = Graph(), Graph()
    with torch.Stream(), one:
        with torch.Stream(), pytest.raises(RuntimeError, match="another graph is being captured"):
            two.capture_begin()


def test_two_graphs_do_not_mix() -> None:
    x = ones(2)
    one, y = capture(lambda: x + 1)
    two, z = capture(lambda: y * 10)  # reads what the other writes
    for value in (1, 4):
        x.fill_(value)
        two.replay()
        one.replay()
        two.replay()
        assert y.tolist() == [value + 1] * 2
        assert z.tolist() == [10 * (value + 1)] * 2


def test_reset_empties_a_graph_and_lets_it_capture_again() -> None:
    x, stream = ones(1), torch.Stream()
    graph, y = capture(lambda: x + 1)
    with pytest.raises(RuntimeError, match="holds a capture; reset"), stream:
        graph.capture_begin()
    graph.reset()
    for call in (graph.replay, graph.pool, graph.instantiate):
        with pytest.raises(RuntimeError, match="capture first"):
            call()
    with stream, graph:
        y = x * 7
    graph.replay()
    assert y.item() == 7


def test_an_empty_capture_is_a_capture() -> None:
    graph, _ = capture(lambda: None)
    graph.replay()
    graph.replay()


def test_instantiate_by_hand_by_replay_and_twice() -> None:
    x = ones(1)
    for keep_graph in (False, True):
        for by_hand in (0, 1, 2):
            graph, y = capture(lambda: x + 1, keep_graph=keep_graph)
            for _ in range(by_hand):
                graph.instantiate()
            graph.replay()
            assert y.item() == 2


def test_debug_dump_has_the_kernels_and_who_reads_whom(tmp_path: Path) -> None:
    x, graph = ones(2, 2), Graph()
    graph.enable_debug_mode()
    with torch.Stream(), graph:
        y = x @ x
        (y + x).relu_()
    graph.debug_dump(str(tmp_path / "dump"))
    dump = (tmp_path / "dump").read_text()
    assert re.findall(r'label="(\w+)"', dump) == ["mm", "add", "relu_"]
    assert re.findall(r"k(\d) -> k(\d)", dump) == [("0", "1"), ("1", "2")]
    graph.replay()
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        capture(lambda: x + 1)[0].debug_dump(str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="cannot write"):
        graph.debug_dump(str(tmp_path / "nowhere" / "dump"))


def test_a_whole_training_step_follows_the_cpu() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
    twin, x, y = copy.deepcopy(net).to("sim"), ones(4, 6), ones(4, 1)

    def stepper(net: nn.Module) -> Callable[..., torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(net(x), y)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            return loss

        return step

    on_cpu, on_sim = stepper(net), stepper(twin)
    batches = torch.randn(30, 4, 6)
    with torch.Stream():
        for batch in batches[:3]:
            x.copy_(batch)
            on_sim(x, y)
            on_cpu(batch, torch.ones(4, 1))
    graph, loss = capture(lambda: on_sim(x, y))
    for batch in batches[3:]:
        x.copy_(batch)
        graph.replay()
        assert abs(loss.item() - on_cpu(batch, torch.ones(4, 1)).item()) < 1e-4


# --------------------------------------------------------------------------------------------------------- the memory


def test_freed_memory_is_used_again() -> None:
    x = ones(1000)
    address, reserved = x.data_ptr(), torch.accelerator.memory_reserved()
    del x
    assert torch.accelerator.memory_allocated() == 0
    assert torch.accelerator.memory_reserved() == reserved
    x = ones(1000)
    assert x.data_ptr() == address
    assert torch.accelerator.memory_reserved() == reserved


def test_a_graph_takes_its_memory_from_a_pool_of_its_own_and_gives_it_back() -> None:
    x = ones(1000)
    before = torch.accelerator.memory_reserved()
    graph, y = capture(lambda: (x + 1) * 2)
    assert torch.accelerator.memory_reserved() == before + 2 * 4096
    torch.accelerator.empty_cache()  # the inner result is free, but the graph writes to it
    assert torch.accelerator.memory_reserved() == before + 2 * 4096
    graph.replay()
    del graph
    assert torch.accelerator.memory_reserved() == before + 4096
    assert y[0].item() == 4  # held by a tensor, so still there
    del y
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == before


def test_graphs_that_share_a_pool_share_memory_until_the_last_has_gone() -> None:
    x = ones(1000)
    before = torch.accelerator.memory_reserved()
    one, first = capture(lambda: (x + 1).sum())
    alone = torch.accelerator.memory_reserved() - before
    two, total = capture(lambda: (x + 2).sum(), pool=one.pool())
    assert two.pool() == one.pool()
    assert torch.accelerator.memory_reserved() - before < 2 * alone
    one.reset()
    two.replay()
    assert total.item() == 3000
    del one, two, first, total
    assert torch.accelerator.memory_reserved() == before


def test_what_a_graph_reads_lives_as_long_as_the_graph() -> None:
    x = ones(1000)
    graph, y = capture(lambda: x + 1)
    x = None
    torch.accelerator.empty_cache()
    graph.replay()
    assert y[0].item() == 2


def test_peaks_can_be_reset() -> None:
    x = ones(100_000)
    del x
    assert torch.accelerator.max_memory_allocated() >= 400_000
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0
