"""What the world got wrong, as the library tells it."""


class Error(RuntimeError):
    """A file, an option, a request or a machine is not what it should be; the message says what was expected.

    ``kind`` is one of ``"file"``, ``"format"``, ``"unsupported"``, ``"option"``, ``"request"``, ``"resource"``,
    ``"device"``.
    """

    kind: str

    def __init__(self, message: str, kind: str = "request") -> None:
        super().__init__(message)
        self.kind = kind
