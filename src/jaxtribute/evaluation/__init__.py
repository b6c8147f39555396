"""Evaluation beside training: checkpoints are found, restored and evaluated as they are written.

What there is to evaluate is found in `_found`, what was evaluated is kept in `_results`, and which
one is next is decided in `_choice`. `_evaluator` does it, until `_ending` says that training is
over. Nothing here writes to what training has written.
"""

from ._evaluator import Evaluator
from ._sidecar import SidecarEvaluator

__all__ = ["Evaluator", "SidecarEvaluator"]
