"""How a pipeline is run: in DALI's operators, or with Python operators, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

from loaders.dali.detection import DetectionPlan
from loaders.dali.plan import NoOperatorsError, Plan
from loaders.dali.python import PythonPlan
from loaders.dali.segmentation import SegmentationPlan
from loaders.dali.speech import SpeechPlan
from loaders.errors import LoaderConfigError
from loaders.image import ImageTransform
from loaders.options import OnError
from loaders.pipeline import Pipeline
from loaders.pipelines.detection import DetectionPipeline
from loaders.pipelines.segmentation import SegmentationPipeline
from loaders.pipelines.speech import SpeechPipeline

__all__ = ["Operators", "plan_of"]

Operators: TypeAlias = Literal["native", "python"]
"""Whose operators run a pipeline: DALI's own wherever there are any, or Python's alone."""

_PLANS: Final[dict[type, Callable[[Any], Plan]]] = {
    SegmentationPipeline: SegmentationPlan,
    DetectionPipeline: DetectionPlan,
    SpeechPipeline: SpeechPlan,
}


def plan_of(pipeline: Pipeline, operators: Operators, on_error: OnError, sample_timeout_s: float | None) -> Plan | None:
    """Return how to run a pipeline that is fed from outside; None for images, which DALI reads by itself.

    Raises LoaderConfigError for operators that there are none of, and for what DALI's image pipeline cannot do.
    """
    if operators not in get_args(Operators):
        raise LoaderConfigError(f"operators={operators!r}: expected one of {', '.join(get_args(Operators))}")
    if operators == "python":
        return PythonPlan(pipeline, "operators=python asks for them")
    if isinstance(pipeline, ImageTransform):
        if on_error == "skip":
            raise LoaderConfigError(
                "on_error=skip: DALI's image pipeline ends with a sample that fails; use raise, or operators=python"
            )
        if sample_timeout_s is not None:
            raise LoaderConfigError(
                "sample_timeout_s: a read of DALI's image pipeline cannot be given up; use null, operators=python, or "
                "another loader"
            )
        return None
    return _fed_plan(pipeline, on_error)


def _fed_plan(pipeline: Pipeline, on_error: OnError) -> Plan:
    build = _PLANS.get(type(pipeline))
    if build is None:
        return PythonPlan(pipeline, f"there is no graph of DALI's operators for a {type(pipeline).__name__}")
    try:
        plan = build(pipeline)
    except NoOperatorsError as error:
        return PythonPlan(pipeline, str(error))
    if plan.decodes and on_error == "skip":
        return PythonPlan(pipeline, "on_error=skip: a pipeline in which DALI decodes ends with a sample that fails")
    return plan
