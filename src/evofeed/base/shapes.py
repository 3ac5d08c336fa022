"""Shape annotations of jaxtyping, which is optional.

Without jaxtyping, as on a machine that only trains, `Float[Tensor, "L 3"]` is `Tensor`.
Tests check the annotations at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Bool", "Float", "Int", "Integer", "Shaped", "UInt8"]

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Integer, Shaped, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Int, Integer, Shaped, UInt8
    except ImportError:

        class _Plain:
            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = Integer = Shaped = UInt8 = _Plain
