"""Sutler reads, decodes and augments training samples, so that the accelerator never waits for them."""

from sutler.errors import DecodeError, Errors, PythonTransformWarning, SampleError, SutlerError

__all__ = ["DecodeError", "Errors", "PythonTransformWarning", "SampleError", "SutlerError"]
