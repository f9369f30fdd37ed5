"""Stream heads: nothing is written at first, and every head is used later."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.linear import seeded_linear
from redhost_mechanisms.residual_stream import ResidualStream
from redhost_mechanisms.stream_heads import StreamHeads
from torch import Tensor, nn

D, H = 8, 3


class SeedsReadWrite(nn.Module):
    """The seed's: `write_heads` is not used, and the write starts at random."""

    def __init__(self, *, width: int, read_heads: int, write_heads: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.read = seeded_linear(width, width * read_heads, generator=g)
        self.write = seeded_linear(width * read_heads, width, generator=g)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.write(self.read(x))


def heads(linears, *, read: int = 2, write: int = 3) -> StreamHeads:
    return StreamHeads(
        part=linears(1, read * H, write * H)[0],
        width=D,
        head_width=H,
        read_heads=read,
        write_heads=write,
        generator=torch.Generator().manual_seed(0),
    )


def test_identity_at_init(linears, rows) -> None:
    x = rows(4)
    wrong = SeedsReadWrite(width=D, read_heads=2, write_heads=3)
    assert not torch.allclose(wrong(x), x)
    assert torch.equal(heads(linears)(x), x)


def test_write_heads_are_used(linears) -> None:
    def write_weights(module: nn.Module) -> int:
        return min(p.numel() for p in module.parameters() if p.dim() > 1 and len(p) == D)

    one, three = (SeedsReadWrite(width=D, read_heads=2, write_heads=w) for w in (1, 3))
    assert write_weights(one) == write_weights(three)
    assert write_weights(heads(linears, write=1)) * 3 == write_weights(heads(linears, write=3))


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.lists(st.integers(0, 3), max_size=2), st.integers(1, 3), st.integers(1, 3))
def test_shapes(linears, rows, leading: list[int], read: int, write: int) -> None:
    module, stream = heads(linears, read=read, write=write), rows(*leading)
    assert module.read(stream).shape == (*leading, read, H)
    content = torch.ones(*leading, write, H)
    assert module.write(stream, content).shape == stream.shape
    with pytest.raises(ValueError, match=f"writes {write} heads of width 3, found"):
        module.write(stream, torch.ones(*leading, write + 1, H))


def test_write_is_the_sum_of_its_heads(linears, rows) -> None:
    module, stream = heads(linears), rows(4)
    weight = module.write_heads_projection.weight
    with torch.no_grad():
        weight.copy_(rows(D, width=3 * H))
    content = rows(4, 3, width=H)
    terms = [content[:, w] @ weight[:, w * H : (w + 1) * H].T for w in range(3)]
    torch.testing.assert_close(module.write(stream, content), stream + sum(terms))


def test_the_write_heads_learn_first(linears, rows) -> None:
    module = heads(linears)
    module(rows(4)).square().sum().backward()
    assert module.write_heads_projection.weight.grad.any()


def test_heads_are_parts_of_a_stream(linears, rows) -> None:
    module = heads(linears)
    x = rows(4)
    assert torch.equal(ResidualStream(width=D, parts=[module])(x), 2 * x)


def test_the_part_fits_between_the_heads(linears) -> None:
    with pytest.raises(ValueError, match="from width 3 to 3, found Linear from width 8 to 3"):
        StreamHeads(part=linears(1, D, H)[0], width=D, head_width=H, generator=torch.Generator())
