"""Check the quantized layers of a conversion one by one, on the inputs that the original has there.

Integers that differ by one are right where the original rounds a float32 sum and the converted
model an exact one, but later layers amplify them: outputs of the whole model tell little about one
layer. So each converted layer is run by itself on the original's own values.
"""

from __future__ import annotations

MOST_DIFFERING = 0.2
"""Share of a layer's integers that may be off by one; rounding its bias may cost an eighth."""
