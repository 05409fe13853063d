"""Every exception that aner raises.

AnerError
|- InvalidRequestError (ValueError)        an argument of one request is out of range or of the wrong form
|  |- ContextFullError                     the prompt does not fit in the context
|  `- TemplateError                        the chat template does not accept the messages, or is itself broken
|- ConfigurationError (ValueError)         a setting of load() or of a builder is out of range
|  `- UnsupportedCombinationError          each setting is fine alone; together, or on this model, they are not
|- SnapshotError (ValueError)              a session snapshot is damaged, or was made by another model or settings
|- UnsupportedOperationError (TypeError)   this kind of handle does not have this operation
|- ModelLoadError                          the file is damaged, foreign, hostile or not supported
|  |- ModelNotFoundError (FileNotFoundError)
|  |- FingerprintMismatchError             the content is not what was expected, or changed during the load
|  `- AdapterError                         likewise for an adapter, or it belongs to another base
|- DeviceUnavailableError (RuntimeError)   not compiled in, no driver or device, or not enough memory there
|- OutOfMemoryError (MemoryError)          would not fit, or an allocation failed
|- BusyError (RuntimeError)                at capacity; try again, or make a sibling
|- ReentrantRequestError (RuntimeError)    a request from a callback that could never be served
|- ClosedError (RuntimeError)              the handle was closed
|- ForkedProcessError (RuntimeError)       the handle belongs to the parent process
|- CancelledError                          someone cancelled the work
|- RequestTimeoutError (TimeoutError)      the request's own time ran out
`- EngineError (RuntimeError)              the engine failed in a call that should have worked
   `- InvalidOutputError                   the model produced logits that are not numbers
"""

from __future__ import annotations

__all__ = [
    "AdapterError",
    "AnerError",
    "BusyError",
    "CancelledError",
    "ClosedError",
    "ConfigurationError",
    "ContextFullError",
    "DeviceUnavailableError",
    "EngineError",
    "FingerprintMismatchError",
    "ForkedProcessError",
    "InvalidOutputError",
    "InvalidRequestError",
    "ModelLoadError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "ReentrantRequestError",
    "RequestTimeoutError",
    "SnapshotError",
    "TemplateError",
    "UnsupportedCombinationError",
    "UnsupportedOperationError",
]


class AnerError(Exception):
    """The root of the tree: catches everything that aner raises on purpose."""


class InvalidRequestError(AnerError, ValueError):
    """An argument of one request is out of range or of the wrong form; the handle is as it was."""


class ContextFullError(InvalidRequestError):
    """The prompt has more tokens than the context holds; the message gives both counts."""


class TemplateError(InvalidRequestError):
    """The chat template does not accept the messages, or is itself broken; the message names which message."""


class ConfigurationError(AnerError, ValueError):
    """A setting of ``load()`` or of a builder is out of range; nothing was made."""


class UnsupportedCombinationError(ConfigurationError):
    """Each setting is fine alone; together, or on this model or device, they are not."""


class SnapshotError(AnerError, ValueError):
    """A session snapshot is damaged, or was made by another model, adapters or settings; nothing was changed."""


class UnsupportedOperationError(AnerError, TypeError):
    """This kind of handle does not have this operation; the message says which does."""


class ModelLoadError(AnerError):
    """The file is damaged, foreign, hostile or not supported; the message says what is wrong with it."""


class ModelNotFoundError(ModelLoadError, FileNotFoundError):
    """There is no readable regular file at the path. aner never downloads."""


class FingerprintMismatchError(ModelLoadError):
    """The content is not what ``expected_sha256`` asked for, or it changed while it was loaded."""


class AdapterError(ModelLoadError):
    """The adapter is damaged, or belongs to another base model."""


class DeviceUnavailableError(AnerError, RuntimeError):
    """The device that was asked for is not compiled in, not there, or too full. Nothing else was tried."""


class OutOfMemoryError(AnerError, MemoryError):
    """It would not fit in memory, or an allocation failed."""


class BusyError(AnerError, RuntimeError):
    """At capacity: one caller per handle, or the queue is full. Nothing was started."""


class ReentrantRequestError(AnerError, RuntimeError):
    """The request came from a callback, or from a thread, that itself keeps it from ever being served."""


class ClosedError(AnerError, RuntimeError):
    """The handle was closed."""


class ForkedProcessError(AnerError, RuntimeError):
    """The handle was made before this process was forked; load the model again here, or spawn instead of fork."""


class CancelledError(AnerError):
    """The work was cancelled before it finished."""


class RequestTimeoutError(AnerError, TimeoutError):
    """The request did not finish within its ``timeout``."""


class EngineError(AnerError, RuntimeError):
    """The engine failed in a call that should have worked; the context was discarded."""


class InvalidOutputError(EngineError):
    """The model produced logits that are not numbers: a damaged model, or an unsupported kernel."""


#: One exception for each error code of the native core, by the code's name.
BY_NATIVE_CODE: dict[str, type[Exception]] = {
    "ok": AnerError,
    "invalid_request": InvalidRequestError,
    "configuration": ConfigurationError,
    "unsupported_combination": UnsupportedCombinationError,
    "unsupported_operation": UnsupportedOperationError,
    "model_not_found": ModelNotFoundError,
    "model_load": ModelLoadError,
    "adapter": AdapterError,
    "fingerprint_mismatch": FingerprintMismatchError,
    "device_unavailable": DeviceUnavailableError,
    "out_of_memory": OutOfMemoryError,
    "context_full": ContextFullError,
    "busy": BusyError,
    "reentrant_request": ReentrantRequestError,
    "closed": ClosedError,
    "forked": ForkedProcessError,
    "cancelled": CancelledError,
    "timeout": RequestTimeoutError,
    "invalid_output": InvalidOutputError,
    "trim_unsupported": EngineError,
    "engine": EngineError,
    "internal": EngineError,
}

#: The HTTP status that a service answers for each exception; a subclass without a line of its own has its base's.
HTTP_STATUS: dict[type[AnerError], int] = {
    AnerError: 500,
    InvalidRequestError: 400,
    ConfigurationError: 500,
    SnapshotError: 400,
    UnsupportedOperationError: 400,
    ModelLoadError: 500,
    DeviceUnavailableError: 503,
    OutOfMemoryError: 503,
    BusyError: 429,
    ReentrantRequestError: 409,
    ClosedError: 503,
    ForkedProcessError: 500,
    CancelledError: 499,
    RequestTimeoutError: 504,
    EngineError: 500,
}
